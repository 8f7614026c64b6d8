"""Translation between the seam's requests and deltas and vLLM's, with the checks vLLM leaves out.

- `check_request` imports no vllm and refuses what would crash the engine for everybody: ids outside the
  vocabulary index the embedding table when vLLM has no tokenizer.
- Stop ids only: no text, no stop strings, no detokenizing.
- No message repeats what was sent.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dayzero.engine.errors import ContextLengthError, UnsupportedFeatureError
from dayzero.engine.types import (
    EngineRequest,
    EngineTimes,
    Finish,
    Grammar,
    GrammarKind,
    Sampling,
    TokenDelta,
    TokenLogprob,
    Usage,
    unpack_ids,
)
from dayzero.errors import InvalidRequestError
from dayzero.serving.engines.vllm_kimi_k3 import kimi_k3_tag

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.inputs.engine import TokensInput
    from vllm.outputs import CompletionOutput, RequestOutput
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.metrics.stats import RequestStateStats

_SEED_LIMIT = 1 << 63
_FINISHES = {"stop": Finish.STOP, "length": Finish.LENGTH, "abort": Finish.ABORT}


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What the started engine allows."""

    max_model_tokens: int
    vocabulary_size: int
    max_logprobs: int
    grammars: bool


def check_request(request: EngineRequest, limits: ModelLimits) -> None:
    """Raises InvalidRequestError or one of its kinds; nothing has been done then."""
    _check_prompt(request, limits)
    _check_features(request, limits)
    _check_sampling(request.sampling, limits)


def _check_prompt(request: EngineRequest, limits: ModelLimits) -> None:
    if not request.prompt_ids or len(request.prompt_ids) % 4:
        raise InvalidRequestError.of("prompt", "the prompt must hold at least one token, 4 bytes each")
    if request.prompt_tokens >= limits.max_model_tokens:
        raise ContextLengthError.of(
            "prompt",
            f"the prompt has {request.prompt_tokens} tokens and leaves no room in a context of "
            f"{limits.max_model_tokens}: shorten it",
        )
    if int(unpack_ids(request.prompt_ids).max()) >= limits.vocabulary_size:
        raise InvalidRequestError.of(
            "prompt", f"a prompt token is outside the vocabulary of {limits.vocabulary_size}"
        )


def _check_features(request: EngineRequest, limits: ModelLimits) -> None:
    if request.media:
        raise UnsupportedFeatureError.of("media", "this engine takes no media")
    if request.lora is not None:
        raise UnsupportedFeatureError.of("lora", "this engine serves no LoRA adapters")
    if request.kv_transfer is not None:
        raise UnsupportedFeatureError.of("kv_transfer", "this engine has no KV transfer")
    if request.grammar is not None and not limits.grammars:
        raise UnsupportedFeatureError.of("grammar", "this engine was started without grammars")


def _check_sampling(sampling: Sampling, limits: ModelLimits) -> None:
    named = {"stop_token_ids": sampling.stop_token_ids, "logit_bias": sampling.logit_bias}
    for field, ids in named.items():
        if any(not 0 <= token < limits.vocabulary_size for token in ids):
            raise InvalidRequestError.of(field, f"{field} names an id outside the vocabulary")
    if sampling.seed is not None and not -_SEED_LIMIT <= sampling.seed < _SEED_LIMIT:
        raise InvalidRequestError.of("seed", "seed must fit in 64 bits, signed")
    if sampling.logprobs is not None and not 0 <= sampling.logprobs <= limits.max_logprobs:
        raise InvalidRequestError.of("logprobs", f"logprobs must be 0 to {limits.max_logprobs}")


def to_prompt(request: EngineRequest) -> "TokensInput":
    """A prompt in the form vLLM calls rendered. It wants a list: the ids are converted here, once."""
    from vllm.inputs.engine import tokens_input  # noqa: PLC0415 - seconds, and not in every process

    return tokens_input(unpack_ids(request.prompt_ids).tolist(), cache_salt=request.salt or None)


def to_sampling_params(request: EngineRequest, limits: ModelLimits) -> "SamplingParams":
    """Raises InvalidRequestError for values vLLM refuses."""
    from vllm import SamplingParams  # noqa: PLC0415
    from vllm.exceptions import VLLMClientError  # noqa: PLC0415
    from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

    wanted = request.sampling
    try:
        return SamplingParams(
            max_tokens=wanted.max_tokens,
            min_tokens=wanted.min_tokens,
            temperature=wanted.temperature,
            top_p=wanted.top_p,
            top_k=wanted.top_k,
            min_p=wanted.min_p,
            presence_penalty=wanted.presence_penalty,
            frequency_penalty=wanted.frequency_penalty,
            repetition_penalty=wanted.repetition_penalty,
            seed=wanted.seed,
            stop_token_ids=list(wanted.stop_token_ids),
            ignore_eos=wanted.ignore_eos,
            logprobs=wanted.logprobs,
            logit_bias=dict(wanted.logit_bias) or None,
            structured_outputs=_structured_outputs(request.grammar, limits.vocabulary_size),
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
    except (ValueError, TypeError, VLLMClientError) as e:
        raise refused(e) from e


def _structured_outputs(grammar: Grammar | None, vocabulary_size: int) -> "StructuredOutputsParams | None":
    from vllm.sampling_params import StructuredOutputsParams  # noqa: PLC0415

    match grammar:
        case None:
            return None
        case Grammar(kind=GrammarKind.JSON_OBJECT):
            return StructuredOutputsParams(json_object=True)
        case Grammar(kind=GrammarKind.JSON_SCHEMA, spec=spec):
            return StructuredOutputsParams(json=spec)
        case Grammar(kind=GrammarKind.REGEX, spec=spec):
            return StructuredOutputsParams(regex=spec)
        case Grammar(kind=GrammarKind.STRUCTURAL_TAG, spec=spec):
            return StructuredOutputsParams(structural_tag=spec)
        case Grammar(kind=GrammarKind.KIMI_K3, spec=spec):
            return StructuredOutputsParams(structural_tag=kimi_k3_tag(spec, vocabulary_size))
        case _:
            raise UnsupportedFeatureError.of("grammar", "this engine does not know that kind of grammar")


def refused(error: Exception) -> InvalidRequestError:
    """A refusal by vLLM as ours, without its text: that may hold what was sent."""
    parameter = getattr(error, "parameter", None)
    field = parameter if isinstance(parameter, str) else None
    what = f"the value of {field}" if field else "the sampling parameters or the grammar"
    return InvalidRequestError(f"the engine refused {what}: check it against the API reference", param=field)


def to_delta(
    output: "RequestOutput", request: EngineRequest, *, completion_tokens: int, total_s: float
) -> TokenDelta:
    """One delta. `completion_tokens`: ids delivered, this delta's included. `total_s` since the engine took it."""
    completion = output.outputs[0]
    finish = (
        None if completion.finish_reason is None else _FINISHES.get(completion.finish_reason, Finish.ERROR)
    )
    # The first delta has usage too: whoever ends the answer early knows what was cached.
    first = completion_tokens == len(completion.token_ids)
    usage = Usage(
        prompt_tokens=request.prompt_tokens,
        completion_tokens=completion_tokens,
        # Within what the wire takes, whatever vLLM counted: its answer is worth more than this figure.
        cached_tokens=min(max(output.num_cached_tokens or 0, 0), request.prompt_tokens),
    )
    return TokenDelta(
        token_ids=tuple(completion.token_ids),
        logprobs=_logprobs(completion, request.sampling.logprobs),
        finish=finish,
        usage=usage if first or finish is not None else None,
        times=_times(output.metrics, total_s) if finish is not None else None,
    )


def never_started(request: EngineRequest) -> TokenDelta:
    """The only delta of a request whose deadline had passed."""
    usage = Usage(prompt_tokens=request.prompt_tokens, completion_tokens=0)
    return TokenDelta(finish=Finish.ABORT, usage=usage, times=EngineTimes(total_s=0.0))


def _logprobs(completion: "CompletionOutput", alternatives: int | None) -> tuple[TokenLogprob, ...] | None:
    if alternatives is None or completion.logprobs is None:
        return None
    return tuple(
        _token_logprob(token, position, alternatives)
        for token, position in zip(completion.token_ids, completion.logprobs, strict=True)
    )


def _token_logprob(token: int, position: dict[int, Any], alternatives: int) -> TokenLogprob:
    """The sampled token and the best ones come in one mapping; the sampled may be among the best."""
    best = sorted((entry.rank, candidate, entry.logprob) for candidate, entry in position.items())
    top = tuple((candidate, logprob) for rank, candidate, logprob in best if rank <= alternatives)
    return TokenLogprob(token_id=token, logprob=position[token].logprob, top=top)


def _times(metrics: "RequestStateStats | None", total_s: float) -> EngineTimes:
    """A time that vLLM does not know yet is 0."""
    if metrics is None or not metrics.first_token_ts:
        return EngineTimes(total_s=total_s)
    return EngineTimes(
        queue_s=max(metrics.scheduled_ts - metrics.queued_ts, 0.0),
        first_token_s=min(metrics.first_token_latency, total_s),
        total_s=total_s,
    )
