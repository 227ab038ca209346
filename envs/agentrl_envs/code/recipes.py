"""Scripted players: how a problem's text becomes a short program whose output is the answer.

A player reads the question and nothing else, as a policy must. A family with no recipe here has no
scripted player; its tasks can be trained on, but not demonstrated.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from agentrl.errors import ConfigError

Spelling = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class CodeRecipe:
    """Translation of one family's question into a program."""

    question: str
    """A regular expression; its named groups fill the program."""
    program: str
    """A format string."""
    spell: Mapping[str, Spelling] = field(default_factory=dict[str, Spelling])
    """Spellings of groups in Python, where they differ from the question."""

    def code(self, question: str) -> str | None:
        """Return the program for a question, or None when it is worded unlike any known one."""
        match = re.search(self.question, question, re.DOTALL)
        if match is None:
            return None
        return self.program.format_map(
            {name: self.spell.get(name, str)(text) for name, text in match.groupdict().items()}
        )


def code_for(family: str, question: str) -> str:
    """Return a program that prints, or evaluates to, the answer of `question`.

    Raises `ConfigError` for a family without a scripted player, or a question it cannot read.
    """
    recipe = RECIPES.get(family)
    if recipe is None:
        raise ConfigError(
            f"there is no scripted player for the task family {family!r}; the families with one "
            f"are {', '.join(RECIPES)}"
        )
    code = recipe.code(question)
    if code is None:
        raise ConfigError(
            f"the scripted player of {family!r} cannot parse the question {question!r}; it "
            "supports the wording of reasoning-gym 0.1.25"
        )
    return code


def _split_list(items: str) -> str:
    return repr([item.strip() for item in items.split(",")])


def _use_decimals(expression: str) -> str:
    return re.sub(r"\d+(?:\.\d+)?", lambda number: f"D('{number[0]}')", expression)


def _convert_complex(expression: str) -> str:
    return expression.replace("×", "*").replace("÷", "/").replace("i", "j")  # noqa: RUF001


def _convert_base(name: str) -> str:
    return {"binary": "2", "hexadecimal": "16"}.get(name, name.removeprefix("base-"))


def _convert_order(order: str) -> str:
    return str(order == "descending")


def _convert_extreme(which: str) -> str:
    return {"largest": "max", "smallest": "min"}[which]


_BASE_CONVERSION = """\
n, digits = int({digits!r}, {source}), ''
while n or not digits:
    n, d = divmod(n, {target})
    digits = '0123456789abcdefghijklmnopqrstuvwxyz'[d] + digits
print(digits)"""

_COMPLEX_ARITHMETIC = """\
z = {expression}
a, b = round(z.real), round(z.imag)
print(a, '-' if b < 0 else '+', str(abs(b)) + 'i')"""

_COUNT_PRIMES = """\
sum(all(n % d for d in range(2, int(n**0.5) + 1)) for n in range(max(2, {low}), {high} + 1))"""

_PRIME_FACTORIZATION = """\
n, d, factors = {number}, 2, []
while n > 1:
    if n % d:
        d += 1
    else:
        n //= d
        factors.append(str(d))
print(' × '.join(factors))"""  # noqa: RUF001 - the sign the problem asks for

RECIPES: Mapping[str, CodeRecipe] = {
    "base_conversion": CodeRecipe(
        r"the (?P<source>\S+) number (?P<digits>\w+) to (?P<target>\S+)",
        _BASE_CONVERSION,
        {"source": _convert_base, "target": _convert_base},
    ),
    "basic_arithmetic": CodeRecipe(
        r"^\D*?(?P<expression>[-(\d].*?)[.?]$",
        "{expression}",
        {"expression": lambda text: text.replace("/", "//")},
    ),
    "bitwise_arithmetic": CodeRecipe(
        r"hexidecimal value\.\s+(?P<expression>.+)$", "print(hex({expression}))"
    ),
    "chain_sum": CodeRecipe(r"problem: (?P<expression>.+) =$", "{expression}"),
    "complex_arithmetic": CodeRecipe(
        r"numbers: (?P<expression>.+)$", _COMPLEX_ARITHMETIC, {"expression": _convert_complex}
    ),
    "count_bits": CodeRecipe(r"number (?P<number>\d+)", "bin({number}).count('1')"),
    "count_primes": CodeRecipe(r"between (?P<low>\d+) and (?P<high>\d+)", _COUNT_PRIMES),
    "decimal_chain_sum": CodeRecipe(
        r"problem: (?P<expression>.+) =$",
        "from decimal import Decimal as D\nprint({expression})",
        {"expression": _use_decimals},
    ),
    "fraction_simplification": CodeRecipe(
        r"(?P<top>\d+)\D+(?P<bottom>\d+)",
        "from fractions import Fraction\n"
        "f = Fraction({top}, {bottom})\n"
        "print(f.numerator, f.denominator, sep='/')",
    ),
    "gcd": CodeRecipe(r"numbers: (?P<numbers>[\d, ]+)", "import math\nmath.gcd({numbers})"),
    "isomorphic_strings": CodeRecipe(
        r"or False otherwise:\s+(?P<first>\S+) (?P<second>\S+)",
        "a, b = {first!r}, {second!r}\nlen(set(zip(a, b))) == len(set(a)) == len(set(b))",
    ),
    "lcm": CodeRecipe(r"numbers: (?P<numbers>[\d, ]+)", "import math\nmath.lcm({numbers})"),
    "letter_counting": CodeRecipe(
        r'letter "(?P<letter>.)" appear in the text: "(?P<text>.*)"\?',
        "{text!r}.lower().count({letter!r})",
    ),
    "number_format": CodeRecipe(
        r"pick the (?P<which>\w+) number of the following candidates: (?P<numbers>.+)",
        "{which}(float(x.replace(',', '')) for x in {numbers})",
        {
            "which": _convert_extreme,
            "numbers": lambda items: repr(items.split()),
        },
    ),
    "number_sorting": CodeRecipe(
        r"in (?P<order>\w+) order: (?P<numbers>[^\n]+)",
        "print(sorted({numbers}, key=float, reverse={order}))",
        {"order": _convert_order, "numbers": _split_list},
    ),
    "power_function": CodeRecipe(
        r"Compute (?P<base>-?[\d.]+)\^(?P<exponent>-?\d+)\.",
        "print(format(({base}) ** {exponent}, '.2e'))",
    ),
    "prime_factorization": CodeRecipe(
        r"prime factorization of (?P<number>\d+)", _PRIME_FACTORIZATION
    ),
    "products": CodeRecipe(r"multiplication: (?P<expression>.+?)\. Give", "{expression}"),
    "ransom_note": CodeRecipe(
        r"Ransom note: (?P<note>\w*)\s+Magazine: (?P<magazine>\w*)",
        "a, b = {note!r}, {magazine!r}\nall(a.count(c) <= b.count(c) for c in a)",
    ),
    "simple_equations": CodeRecipe(
        r"(?:of|for) (?P<name>\w)\b[^:]*: (?P<left>.*) = (?P<right>-?\d+)$",
        "f = lambda {name}: {left} - ({right})\n-f(0) // (f(1) - f(0))",
    ),
    "spell_backward": CodeRecipe(r": (?P<word>\S+)$", "print({word!r}[::-1])"),
    "word_sequence_reversal": CodeRecipe(
        r"list of words: (?P<words>[^\n]+)",
        "print(', '.join({words}[::-1]))",
        {"words": _split_list},
    ),
    "word_sorting": CodeRecipe(
        r"words in (?P<order>\w+) order \(.*?list: (?P<words>[^\n]+)",
        "print(', '.join(sorted({words}, reverse={order})))",
        {"order": _convert_order, "words": _split_list},
    ),
}
"""The scripted players, by family."""
