"""Checks of a request before it is taken, with the numbers in the error."""

from collections.abc import Container

from agentrl.policy import GenerateRequest, ScoreRequest


def check_request(
    request: GenerateRequest,
    *,
    context_tokens: int,
    vocabulary: int,
    in_flight: Container[str],
    reads_text: bool,
    takes_images: bool = False,
) -> None:
    """Raise `ValueError` for a request that cannot be served."""
    if not request.prompt:
        raise ValueError(f"request {request.id!r}: the prompt is empty; give at least one token")
    check_room(request, context_tokens)
    check_budget(request)
    if not 0 <= request.begun_tokens < len(request.prompt):
        raise ValueError(
            f"request {request.id!r}: begun_tokens must be within [0, {len(request.prompt)}), the "
            f"prompt's length, got {request.begun_tokens}"
        )
    check_id(request.id, in_flight)
    check_images(request, takes_images=takes_images)
    if request.stop_strings and not reads_text:
        raise ValueError(
            f"request {request.id!r} has stop strings, but the engine has no tokenizer; create it "
            "with decode=tokenizer.decode"
        )
    check_vocabulary(request, request.prompt, vocabulary)


def check_room(request: GenerateRequest, context_tokens: int) -> None:
    """Raise `ValueError` for a prompt that fills the context."""
    if len(request.prompt) >= context_tokens:
        raise ValueError(
            f"request {request.id!r}: a prompt of {len(request.prompt)} tokens leaves no room to "
            f"sample in a context of engine.context_tokens={context_tokens}; shorten the prompt or "
            "raise engine.context_tokens"
        )


def check_budget(request: GenerateRequest) -> None:
    """Raise `ValueError` for a request of no tokens."""
    if request.max_new_tokens < 1:
        raise ValueError(
            f"request {request.id!r}: max_new_tokens must be at least 1, got "
            f"{request.max_new_tokens}"
        )


def check_score(
    request: ScoreRequest,
    *,
    context_tokens: int,
    vocabulary: int,
    in_flight: Container[str],
    takes_images: bool = False,
) -> None:
    """Raise `ValueError` where tokens cannot be scored."""
    tokens = request.prompt + request.token_ids
    if not request.prompt or not request.token_ids or len(tokens) > context_tokens:
        raise ValueError(
            f"request {request.id!r} asks to score {len(request.token_ids)} tokens after a prompt "
            f"of {len(request.prompt)}; give at least one of each, and no more than "
            f"engine.context_tokens={context_tokens} in total"
        )
    check_id(request.id, in_flight)
    check_images(request, takes_images=takes_images)
    check_vocabulary(request, tokens, vocabulary)


def check_id(id: str, in_flight: Container[str]) -> None:
    """Raise `ValueError` for an id that is taken."""
    if id in in_flight:
        raise ValueError(f"request {id!r} is already in flight; give each request its own id")


def check_images(request: GenerateRequest | ScoreRequest, *, takes_images: bool) -> None:
    """Raise `ValueError` for images that nobody would look at."""
    if request.images and not takes_images:
        raise ValueError(
            f"request {request.id!r} has {len(request.images)} images, but the engine accepts "
            "none; create it from a Qwen-VL model, with the model's image processor"
        )


def check_vocabulary(
    request: GenerateRequest | ScoreRequest, tokens: tuple[int, ...], vocabulary: int
) -> None:
    """Raise `ValueError` for a token or a number of alternatives that the model does not have."""
    for token in (min(tokens), max(tokens)):
        if 0 <= token < vocabulary:
            continue
        raise ValueError(
            f"request {request.id!r}: token {token} is not in the model's vocabulary of "
            f"{vocabulary}"
        )
    if not 0 <= request.top_logprobs <= vocabulary:
        raise ValueError(
            f"request {request.id!r}: top_logprobs must be within [0, {vocabulary}], "
            f"got {request.top_logprobs}"
        )
