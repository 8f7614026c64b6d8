"""Texts of four kinds, of any length, no two alike, without a network.

- `code`: the standard library's own sources, function by function, in an order of the seed's.
- `english`: sentences of the standard library's documentation, with names and words made up between them.
- `agent`: JSON as an agent's tools return it: paths, ids, numbers, code and prose in strings.
- `chinese`: words and phrases of everyday and technical Chinese, rare characters, Latin terms and numbers.
"""

import json
import random
import re
import sysconfig
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

KINDS = ("english", "code", "agent", "chinese")
_CHINESE = """
的 了 是 在 我们 你们 他们 这个 那个 可以 需要 没有 已经 因为 所以 但是 如果 然后 或者 而且 通过 进行 使用 包括 根据 关于 对于 由于 以及
系统 数据 模型 服务 请求 用户 时间 问题 方法 结果 文件 程序 代码 函数 参数 配置 接口 网络 缓存 内存 线程 进程 日志 错误 测试 部署 集群
北京 上海 广州 深圳 杭州 成都 武汉 西安 南京 天津 重庆 长城 黄河 长江 春天 夏天 秋天 冬天 早上 晚上 昨天 今天 明天 去年 今年 明年
提高 降低 增加 减少 优化 分析 设计 实现 处理 解决 支持 提供 选择 检查 更新 删除 创建 返回 等待 开始 结束 发送 接收 保存 读取 写入
非常 比较 特别 一般 重要 简单 复杂 快速 稳定 安全 可靠 有效 正确 完整 详细 清楚 明显 主要 基本 具体 经济 社会 文化 教育 科学 技术 历史
人工智能 机器学习 神经网络 自然语言 云计算 大语言模型 推理 训练 注意力机制 上下文 前缀 令牌 吞吐量 延迟 带宽 显存 调度 路由 负载均衡
老师 学生 朋友 家庭 公司 经理 医生 医院 学校 公园 图书馆 火车站 飞机场 咖啡 米饭 面条 水果 蔬菜 牛奶 鸡蛋 音乐 电影 足球 篮球 旅行
不仅如此 总而言之 众所周知 换句话说 在这种情况下 从某种意义上说 到目前为止 与此同时 除此之外 另一方面 更重要的是 一方面 值得注意的是
""".split()  # noqa: SIM905  a list of words reads as words
_LATIN = ["GPU", "API", "Kimi", "token", "Ray", "CPU", "JSON", "HTTP", "v2.1", "KV cache"]
_SYLLABLES = re.findall("..", "babecodadelefagohijokalomanepaquirasetauvawexyozan")


def text(kind: str, characters: int, seed: int) -> str:
    """`characters` of a kind; another seed, another text."""
    parts: list[str] = []
    length = 0
    for part in _MAKERS[kind](random.Random(f"{kind}{seed}")):
        parts.append(part)
        length += len(part)
        if length >= characters:
            break
    return "".join(parts)[:characters]


def _code(seeded: random.Random) -> Iterator[str]:
    while True:
        yield from seeded.sample(_blocks(), len(_blocks()))


def _english(seeded: random.Random) -> Iterator[str]:
    while True:
        for sentence in seeded.sample(_sentences(), len(_sentences())):
            words = sentence.split(" ")
            for _ in range(len(words) // 10):
                words[seeded.randrange(len(words))] = _name(seeded)
            yield " ".join(words) + seeded.choice([" ", " ", " ", "\n\n"])


def _agent(seeded: random.Random) -> Iterator[str]:
    blocks, sentences = _blocks(), _sentences()
    while True:
        result = {
            "id": f"call_{seeded.randbytes(12).hex()}",
            "path": "/".join(_name(seeded).lower() for _ in range(4)) + ".py",
            "took_s": round(seeded.random() * 10, 4),
            "lines": [seeded.randrange(5000), seeded.randrange(5000)],
            "note": seeded.choice(sentences),
            "matches": [
                {"line": seeded.randrange(9999), "text": line, "score": round(seeded.random(), 3)}
                for line in seeded.choice(blocks).splitlines()[:12]
            ],
            "content": seeded.choice(blocks)[:2000],
            "ok": seeded.random() < 0.9,
            "next": None,
        }
        yield json.dumps(result) + "\n"


def _chinese(seeded: random.Random) -> Iterator[str]:
    while True:
        words = seeded.choices(_CHINESE, k=seeded.randrange(3, 8))
        if seeded.random() < 0.15:
            words.append(seeded.choice(_LATIN))
        if seeded.random() < 0.15:
            words.append(str(seeded.randrange(10_000)))
        if seeded.random() < 0.5:
            words.append(chr(seeded.randrange(0x4E00, 0x9FA5)))
        seeded.shuffle(words)
        yield "".join(words) + seeded.choice(["，", "，", "，", "。", "。", "？", "；", "。\n"])  # noqa: RUF001


_MAKERS: dict[str, Callable[[random.Random], Iterator[str]]] = {
    "english": _english,
    "code": _code,
    "agent": _agent,
    "chinese": _chinese,
}


def _name(seeded: random.Random) -> str:
    return "".join(seeded.choices(_SYLLABLES, k=seeded.randrange(2, 5))).capitalize()


@cache
def _blocks() -> list[str]:
    folder = Path(sysconfig.get_paths()["stdlib"])
    found: list[str] = []
    for path in sorted(folder.rglob("*.py")):
        if "site-packages" not in path.parts and "test" not in path.parts:
            source = path.read_text(encoding="utf-8", errors="replace")
            found += [
                block for block in re.split(r"(?m)^(?=def |class |@|    def )", source) if block.strip()
            ]
    return found


@cache
def _sentences() -> list[str]:
    from pydoc_data.topics import topics

    prose = " ".join(" ".join(topic.split()) for topic in topics.values())
    return [sentence for sentence in re.split(r"(?<=[.:]) +", prose) if sentence.count(" ") > 3]
