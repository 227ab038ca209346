"""The stream of a command's output, however it is cut. Mutants seen caught: output unbounded."""

from hypothesis import given
from hypothesis import strategies as st

from agentrl_sandbox.launch.exec_stream import ExecReader

FRAMES = st.lists(st.tuples(st.sampled_from((1, 2)), st.binary(max_size=12)), max_size=8)


@given(frames=FRAMES, cut=st.integers(1, 9), most=st.integers(0, 30))
def test_frames_are_read_however_they_are_cut(
    frames: list[tuple[int, bytes]], cut: int, most: int
) -> None:
    stream = b"".join(
        bytes([kind, 0, 0, 0]) + len(body).to_bytes(4, "big") + body for kind, body in frames
    )
    reader = ExecReader(max_bytes=most)
    for at in range(0, len(stream), cut):
        reader.feed(stream[at : at + cut])
        assert not reader.ended
    reader.feed(b"")
    out, err = (b"".join(body for kind, body in frames if kind == k) for k in (1, 2))
    assert (bytes(reader.stdout), bytes(reader.stderr)) == (out[:most], err[:most])
    assert reader.truncated == (len(out) > most or len(err) > most)
    assert reader.ended
