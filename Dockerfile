# agentrl with what training needs, for a user without privileges: docs/containers.md.
# The base and all of the arguments may be others; none of them needs BuildKit.
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
# What pip reads from its environment, for a mirror, or for no index at all beside wheels/.
ARG PIP_INDEX_URL
ARG PIP_NO_INDEX
ENV PIP_FIND_LINKS=/wheels PIP_CONSTRAINT=/wheels/constraints.txt \
    PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1 PIP_ROOT_USER_ACTION=ignore
# The folder is optional: `make wheels` fills it.
COPY constraints.txt wheel[s] /wheels/
# Debian's python3 lacks ensurepip; pip's own wheel can be run as it is.
RUN python3 -m venv --without-pip /opt/agentrl && cd /opt/agentrl/bin && wheel=$(ls /wheels/pip-*.whl || true) && \
    if [ -n "$wheel" ]; then ./python "$wheel/pip" install pip; \
    else ./python -m ensurepip && ./python -m pip install --upgrade pip; fi
# torch is alone in a layer, for it is most of the download. Its index of CPU builds is asked for
# torch only; with an empty TORCH_INDEX it comes from the package index, with CUDA.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN /opt/agentrl/bin/python -m pip install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch
ARG EXTRAS=train
COPY hatch_build.py pyproject.toml README.md LICENSE /source/
COPY agentrl /source/agentrl
COPY configs /source/configs
COPY envs /source/envs
COPY sandbox /source/sandbox
COPY tools /source/tools
# reasoning-gym comes without its dependencies, for one of them needs a C compiler: see pyproject.toml.
RUN cd /source && \
    /opt/agentrl/bin/python -m pip install ".[$EXTRAS]" --group reasoning && \
    /opt/agentrl/bin/python -m pip install --no-deps reasoning-gym
# Users of the image cannot write there, so what training imports is compiled now.
RUN /opt/agentrl/bin/python -m compileall -qq -j 0 /opt/agentrl/lib/python3*/site-packages/agentrl* && \
    /opt/agentrl/bin/python -W ignore -c \
    'import agentrl.run.train, agentrl.engine.local, agentrl.learn.trainer, agentrl_envs.code'

FROM ${BASE}
# Programs that the image has beside Python; `gcc libc6-dev` for torch.compile and vLLM on GPUs.
ARG PACKAGES
RUN if [ -n "$PACKAGES" ]; then apt-get update && \
    apt-get install -y --no-install-recommends $PACKAGES && rm -rf /var/lib/apt/lists/*; fi
COPY --from=build /opt/agentrl /opt/agentrl
# Runs, models and caches go here, for whichever user the container is started as.
RUN mkdir -m 1777 /work
ENV PATH=/opt/agentrl/bin:/usr/local/bin:/usr/bin:/bin HOME=/work
WORKDIR /work
USER 1000:1000
ENTRYPOINT ["agentrl"]
CMD ["--help"]
