"""Images that are kept: the newest, and those used last."""

from agentrl_sandbox.provider.namespaces.layer_cache import choose_oldest


def test_those_used_longest_ago_go() -> None:
    used_s = {"a": 3.0, "b": 1.0, "c": 2.0, "new": 0.0}
    assert list(choose_oldest(used_s, 4, keep="new")) == []
    assert list(choose_oldest(used_s, 3, keep="new")) == ["b"]
    assert list(choose_oldest(used_s, 1, keep="new")) == ["b", "c", "a"]
    assert list(choose_oldest({"new": 0.0}, 1, keep="new")) == []
