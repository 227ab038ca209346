"""Our own sites: every kind of task can be done, only doing it pays, and the state decides.

Mutants seen caught: a summary without the wish list, reviews, all but one line of an
order, without categories; an answer that pays although the state has changed; one that pays
unread; a last word that ends nothing; amounts as whole numbers; texts by containment; a copy that
shares the state, or asks the original; another origin answered; a split that ignores the text of a
problem; held-out templates in training; a problem twice; a preparation that is skipped; a player
that sees only the latest page; a quantity without a bound; a coupon that stays; a delivery for
nothing; text and templates unescaped; another revision restored; two cookies in one.
"""

import copy
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from agentrl.errors import ConfigError, EnvError
from agentrl.message import Message
from agentrl.task import SPLITS, Task
from agentrl_envs.web.episode_site import SiteVerdict, WebRequest
from agentrl_envs.web.sites import shop_pack, wiki_pack
from agentrl_envs.web.sites.asgi import AsgiSite, SiteRefusal
from agentrl_envs.web.sites.pack import TemplateSitePack
from agentrl_envs.web.sites.shop.site import SHOP
from agentrl_envs.web.sites.shop.state import shop
from agentrl_envs.web.sites.template import SiteTemplate, is_same_amount, is_same_text
from agentrl_envs.web.sites.wiki.site import WIKI
from agentrl_envs.web.sites.wiki.state import wiki
from tests.support.paper_browser import PaperBrowser

PACKS: dict[str, Callable[..., TemplateSitePack[Any]]] = {"shop": shop_pack, "wiki": wiki_pack}
TEMPLATES = [(site.name, template) for site in (SHOP, WIKI) for template in site.templates]
NAMES = [f"{site}-{template.name}" for site, template in TEMPLATES]


def tasks_of(site: str, template: str, count: int = 3) -> list[Task]:
    pack = PACKS[site](templates=[template])
    return list(islice(pack.tasks("train", 0), count))


def played(pack: TemplateSitePack[Any], task: Task) -> tuple[float, int, AsgiSite[Any]]:
    """Return what the gold player earned, in how many steps, and the world it left."""
    world = pack.world(task)
    browser = PaperBrowser(world)
    seen = [Message("user", f"Goal: {world.goal}\n{browser.text}")]
    for steps in range(1, 17):
        action = pack.gold(task, seen)
        verdict = browser.act(action)
        if verdict.done:
            return verdict.reward, steps, world
        assert verdict.reward == 0
        seen += [action.message, Message("tool", browser.text)]
    raise AssertionError(f"{task.id} has no end")


@pytest.mark.parametrize(("site", "template"), TEMPLATES, ids=NAMES)
def test_gold_earns_one_in_three_to_fifteen_steps(site: str, template: SiteTemplate[Any]) -> None:
    for task in tasks_of(site, template.name):
        reward, steps, _ = played(PACKS[site](), task)
        assert reward == 1
        assert 3 <= steps <= 15


@pytest.mark.parametrize(("site", "template"), TEMPLATES, ids=NAMES)
def test_doing_nothing_earns_nothing(site: str, template: SiteTemplate[Any]) -> None:
    for task in tasks_of(site, template.name):
        world = PACKS[site]().world(task)
        assert world.check(world.state, None) == SiteVerdict(reward=0.0, done=False)
        assert world.check(world.state, "") == SiteVerdict(reward=0.0, done=True)


@pytest.mark.parametrize(("site", "template"), TEMPLATES, ids=NAMES)
def test_a_thing_nobody_asked_for_spoils_it(site: str, template: SiteTemplate[Any]) -> None:
    for task in tasks_of(site, template.name):
        world = PACKS[site]().world(task)
        template.do(world.state, task.data["wanted"])
        spoiled = copy.deepcopy(world.state)
        if site == "shop":
            spoiled.review(next(iter(spoiled.catalogue.products)), 5, "Great")
        else:
            spoiled.create("Something else", "Text.", [])
        said = task.answer or "done"
        assert world.check(world.state, said).reward == 1
        assert world.check(spoiled, said) == SiteVerdict(reward=0.0, done=True)


def changed(key: str, value: Callable[[Any], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda wanted: wanted | {key: value(wanted[key])}


def in_line(key: str, value: Callable[[Any], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return changed("line", lambda line: line | {key: value(line[key])})


def other_product(product: str) -> str:
    return next(id for id in shop(0).catalogue.products if id != product)


NEAR: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "shop-cart": in_line("quantity", lambda n: n + 1),
    "shop-mend_cart": changed("quantity", lambda n: n % 9 + 1),
    "shop-order": changed("delivery", lambda d: "express" if d != "express" else "pickup"),
    "shop-order_elsewhere": changed("address", lambda _: 1),
    "shop-order_with_coupon": changed("coupon", lambda _: ""),
    "shop-order_two": changed("lines", lambda lines: lines[:1]),
    "shop-return": changed("reason", lambda r: "damaged" if r != "damaged" else "too late"),
    "shop-account": changed("phone", lambda phone: phone[:-1]),
    "shop-move": changed("address", lambda a: a | {"city": a["city"] + "s"}),
    "shop-review": changed("stars", lambda n: n % 5 + 1),
    "wiki-watch_works": changed("titles", lambda titles: titles[1:]),
    "wiki-correct": changed("text", lambda text: text.rsplit("\n", 1)[0]),
    "wiki-categorise": changed("categories", lambda names: names[-1:]),
    "wiki-create": changed("text", lambda text: text.replace("[[", "").replace("]]", "")),
}
"""Tasks that are done almost: what was wanted, with one thing changed."""


@pytest.mark.parametrize("name", NEAR)
def test_almost_earns_nothing(name: str) -> None:
    site, _, kind = name.partition("-")
    for task in tasks_of(site, kind):
        world = PACKS[site]().world(task)
        template = next(t for s, t in TEMPLATES if (s, t.name) == (site, kind))
        template.do(world.state, NEAR[name](task.data["wanted"]))
        assert world.check(world.state, "done") == SiteVerdict(reward=0.0, done=True)


@pytest.mark.parametrize("name", ["cart", "cheapest", "wish", "best_rated"])
def test_another_product_earns_nothing(name: str) -> None:
    for task in tasks_of("shop", name):
        world = PACKS["shop"]().world(task)
        line = task.data["wanted"]["line"]
        products = world.state.catalogue.products
        for other in [id for id in products if id != line["product"]]:
            state = copy.deepcopy(world.state)
            if name in ("wish", "best_rated"):
                state.wish(other)
            else:
                state.add_to_cart(other, products[other].colours[0], line["quantity"])
            assert world.check(state, "done").reward == 0


def test_every_line_of_an_order_counts() -> None:
    for task in tasks_of("shop", "order_two"):
        world = PACKS["shop"]().world(task)
        next(t for t in SHOP.templates if t.name == "order_two").do(
            world.state, task.data["wanted"]
        )
        for line in world.state.orders[-1].lines:
            state = copy.deepcopy(world.state)
            other = next(x for x in state.orders[-1].lines if x.product == line.product)
            other.colour = "purple"
            assert world.check(world.state, "done").reward == 1
            assert world.check(state, "done").reward == 0


def test_other_ways_not_quite_there() -> None:
    (cancel,) = tasks_of("shop", "cancel", 1)
    world = PACKS["shop"]().world(cancel)
    world.state.send_back(1001, world.state.orders[0].lines[0].product, "too late")
    world.state.cancel(cancel.data["wanted"]["order"])
    assert world.check(world.state, "done").reward == 0

    (forget,) = tasks_of("shop", "forget_address", 1)
    world = PACKS["shop"]().world(forget)
    world.state.remove_address(forget.data["wanted"]["addresses"][1])
    assert world.check(world.state, "done").reward == 0

    (move,) = tasks_of("shop", "move", 1)
    world = PACKS["shop"]().world(move)
    world.state.add_address(**move.data["wanted"]["address"])
    assert world.check(world.state, "done").reward == 0

    (again,) = tasks_of("shop", "order_again", 1)
    world = PACKS["shop"]().world(again)
    world.state.order_again(again.data["wanted"]["order"])
    world.state.order(address=1, delivery="standard", accepted=True)
    assert world.check(world.state, "done").reward == 0

    (watch,) = tasks_of("wiki", "watch", 1)
    world = PACKS["wiki"]().world(watch)
    world.state.watch(
        next(t for t in world.state.articles if t not in watch.data["wanted"]["titles"])
    )
    assert world.check(world.state, "done").reward == 0

    (restore,) = tasks_of("wiki", "restore", 1)
    world = PACKS["wiki"]().world(restore)
    world.state.edit(restore.data["wanted"]["title"], "A text.", [], "cleaned")
    assert world.check(world.state, "done").reward == 0


ANSWERED = [(site, t) for site, t in TEMPLATES if t.right is not None]


@pytest.mark.parametrize(("site", "template"), ANSWERED, ids=[t.name for _, t in ANSWERED])
def test_another_answer_earns_nothing(site: str, template: SiteTemplate[Any]) -> None:
    for task in tasks_of(site, template.name):
        world = PACKS[site]().world(task)
        wanted = task.answer
        others = [f"{wanted} or so", f"not {wanted}", f"{wanted}1", wanted[1:], f"1{wanted}"]
        others += [name for name in task.data["wanted"].get("names", []) if name != wanted]
        for other in others:
            assert world.check(world.state, other) == SiteVerdict(reward=0.0, done=True), other
        assert world.check(world.state, f" {wanted}. ").reward == 1


@pytest.mark.parametrize(
    ("said", "wanted", "right"),
    [
        ("12.95", "12.95", True),
        ("12.95 EUR", "12.95", True),
        ("€12.95", "12.95", True),
        ("7", "7.00", True),
        ("12.95 or 13.95", "12.95", False),
        ("1295", "12.95", False),
        ("12", "12.95", False),
        ("", "0", False),
        ("-12.95", "12.95", False),
    ],
)
def test_amounts_are_compared_as_numbers(said: str, wanted: str, right: bool) -> None:
    assert is_same_amount(said, wanted) is right


@pytest.mark.parametrize(
    ("said", "wanted", "right"),
    [
        ("the silver harbour.", "The Silver Harbour", True),
        ("Silver Harbour", "The Silver Harbour", True),
        ("Silver  Harbour", "Silver Harbour", True),
        ("SilverHarbour", "Silver Harbour", False),
        ("Silver Harbour and Iron Door", "Silver Harbour", False),
        ("", "", False),
    ],
)
def test_texts_are_compared_whole(said: str, wanted: str, right: bool) -> None:
    assert is_same_text(said, wanted) is right


@pytest.mark.parametrize("site", PACKS)
def test_tasks_are_the_same_for_the_same_seed_and_split_apart(site: str) -> None:
    pack = PACKS[site]()
    train, again, other = (list(islice(pack.tasks("train", seed), 60)) for seed in (0, 0, 1))
    heldout = list(islice(pack.tasks("heldout", 0), 60))
    assert train == again != other
    assert len({task.fingerprint for task in train}) == 60
    assert not {t.fingerprint for t in train} & {t.fingerprint for t in heldout}
    assert {task.split for task in heldout} == {"heldout"}


def test_a_kind_with_few_problems_ends_and_none_comes_twice() -> None:
    tasks = shop_pack(templates=["forget_address"]).tasks("train", 0)
    pairs = [task.prompt for task in islice(tasks, 60)]
    assert len({*pairs}) == len(pairs)
    assert 10 <= len(pairs) <= 20


@pytest.mark.parametrize("site", PACKS)
def test_templates_can_be_held_out(site: str) -> None:
    pack = PACKS[site](heldout_by="template")
    kinds = [
        {task.data["template"] for task in islice(pack.tasks(split, 0), 80)} for split in SPLITS
    ]
    assert kinds[1] == {"shop": SHOP, "wiki": WIKI}[site].heldout_templates
    assert not kinds[0] & kinds[1]
    assert len(kinds[0]) + len(kinds[1]) == len({"shop": SHOP, "wiki": WIKI}[site].templates)


def test_enough_kinds_of_tasks() -> None:
    assert len(SHOP.templates) >= 12
    assert len(WIKI.templates) >= 8
    for site in (SHOP, WIKI):
        assert {template.level for template in site.templates} == {1, 2, 3}
        assert len({template.name for template in site.templates}) == len(site.templates)


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'cart'"):
        shop_pack(templates=["carts"])
    with pytest.raises(ConfigError, match="one or more of"):
        shop_pack(levels=[4])
    with pytest.raises(ConfigError, match="heldout_by"):
        shop_pack(heldout_by="luck")
    with pytest.raises(ConfigError, match="held out"):
        shop_pack(templates=["cart"], heldout_by="template")
    assert len(list(shop_pack(size=5).tasks("train", 0))) == 5


async def test_a_copy_of_a_world_goes_its_own_way() -> None:
    (task,) = tasks_of("shop", "wish", 1)
    world = shop_pack().world(task)
    home = WebRequest(method="GET", url=world.start_url, headers={})
    assert await world.answer(home) is not None
    other = world.copy()
    post = WebRequest(
        method="POST",
        url=f"http://shop.invalid/product/{task.data['wanted']['line']['product']}/wish",
        headers={},
    )
    answered = await other.answer(post)
    assert answered is not None
    assert (answered.status, answered.headers["location"]) == (303, "/wishlist")
    assert (other.check(other.state, None).reward, world.check(world.state, None).reward) == (1, 0)
    assert other.state.catalogue is world.state.catalogue


async def test_a_world_answers_for_its_origin_alone() -> None:
    (task,) = tasks_of("shop", "wish", 1)
    world = shop_pack().world(task)
    for url in ("http://wiki.invalid/", "https://shop.invalid/", "http://shop.invalid:81/"):
        assert await world.answer(WebRequest(method="GET", url=url, headers={})) is None
    missing = await world.answer(
        WebRequest(method="GET", url="http://shop.invalid/nowhere", headers={})
    )
    assert missing is not None
    assert (missing.status, b"There is no such page" in missing.body) == (404, True)


async def test_an_application_that_raises_is_blamed() -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise ZeroDivisionError("oh")

    def check(state: None, said: str | None) -> SiteVerdict:
        return SiteVerdict(reward=0.0, done=False)

    world = AsgiSite(broken, None, goal="Go.", check=check, origin="http://x.invalid")
    with pytest.raises(EnvError, match=r"the site on GET /page: ZeroDivisionError: oh"):
        await world.answer(WebRequest(method="GET", url="http://x.invalid/page?a=1", headers={}))
    with pytest.raises(ConfigError, match="origin is"):
        AsgiSite(broken, None, goal="Go.", check=check, origin="http://x.invalid/path")


async def test_cookies_come_one_by_one() -> None:
    from starlette.responses import PlainTextResponse

    response = PlainTextResponse("hello")
    response.set_cookie("a", "1")
    response.set_cookie("b", "2")

    def check(state: None, said: str | None) -> SiteVerdict:
        return SiteVerdict(reward=0.0, done=False)

    world = AsgiSite(response, None, goal="Go.", check=check, origin="http://x.invalid")
    answered = await world.answer(WebRequest(method="GET", url="http://x.invalid/", headers={}))
    assert answered is not None
    cookies = answered.headers["set-cookie"].split("\n")
    assert [cookie.split(";")[0] for cookie in cookies] == ["a=1", "b=2"]


def test_what_a_page_shows_is_escaped() -> None:
    (task,) = tasks_of("wiki", "watch", 1)
    world = wiki_pack().world(task)
    title = task.data["wanted"]["titles"][0]
    world.state.edit(title, "<script>alert(1)</script> [[<b>]]", ["<i>"], "")
    browser = PaperBrowser(world)
    browser.get(f"http://wiki.invalid/article/{title.replace(' ', '_')}")
    assert "<script>alert(1)</script>" in browser.text
    assert 'link "<b>"' in browser.text
    assert 'link "<i>"' in browser.text


REFUSALS: list[Callable[[Any], object]] = [
    lambda s: s.add_to_cart("nothing", "red", 1),
    lambda s: s.add_to_cart(next(iter(s.catalogue.products)), "", 1),
    lambda s: s.add_to_cart(next(iter(s.catalogue.products)), "red", 0),
    lambda s: s.set_quantity(0, 1),
    lambda s: s.use_coupon("NONE"),
    lambda s: s.order(address=1, delivery="standard", accepted=True),
    lambda s: s.cancel(1001),
    lambda s: s.cancel(1),
    lambda s: s.send_back(1003, s.orders[2].lines[0].product, "damaged"),
    lambda s: s.send_back(1001, "nothing", "damaged"),
    lambda s: s.add_address(name="A", street="B", city="C", postcode="1234"),
    lambda s: s.add_address(name="", street="B", city="C", postcode="12345"),
    lambda s: s.remove_address(1),
    lambda s: s.make_default(9),
    lambda s: s.update_account(name="A", email="nobody", phone="", newsletter=True),
    lambda s: s.review(next(iter(s.catalogue.products)), 6, "Good"),
    lambda s: s.review(next(iter(s.catalogue.products)), 5, " "),
]


@pytest.mark.parametrize("act", REFUSALS)
def test_the_shop_refuses_and_stays_as_it_is(act: Callable[[Any], object]) -> None:
    state = shop(0)
    with pytest.raises(SiteRefusal):
        act(state)
    assert SHOP.summary(state) == SHOP.summary(shop(0))


def test_the_shop_counts() -> None:
    state = shop(0)
    first, second = islice(state.catalogue.products.values(), 2)
    state.add_to_cart(first.id, first.colours[0], 2)
    state.add_to_cart(second.id, second.colours[0], 1)
    full = 2 * first.price_cents + second.price_cents
    assert state.goods_cents == full
    state.use_coupon(" save10 ")
    assert state.goods_cents == full - full // 10
    order = state.order(address=2, delivery="express", accepted=True)
    assert order.total_cents == full - full // 10 + 990
    assert (state.cart, state.coupon, order.address.id) == ([], "", 2)
    with pytest.raises(SiteRefusal, match="1 to 9"):
        state.add_to_cart(first.id, first.colours[0], 10)


def test_a_form_with_a_mistake_says_so_and_changes_nothing() -> None:
    (task,) = tasks_of("shop", "cart", 1)
    world = shop_pack().world(task)
    browser = PaperBrowser(world)
    browser.get(f"http://shop.invalid/product/{task.data['wanted']['line']['product']}")
    before = SHOP.summary(world.state)
    add = next(i for i, x in enumerate(browser.page.things, 1) if x.name == "Add to cart")
    from agentrl.env import call

    browser.act(call("click", id=add))
    assert (browser.status, "Please choose a colour." in browser.text) == (422, True)
    assert SHOP.summary(world.state) == before


def test_the_wiki_finds_links_and_categories() -> None:
    state = wiki(0)
    person = state.world.facts.of_kind("person")[1]
    assert state.search(person.name.casefold())[0] == person.name
    assert state.search("") == []
    assert person.name in state.list_category(f"People of {person.country}")
    assert person.name in state.links_to(person.facts["birthplace"])
    for title, revisions in state.articles.items():
        assert revisions[-1].text.count("\n") == len(state.world.facts.entities[title].facts)


def test_a_restored_revision_is_the_one_that_was_asked_for() -> None:
    state = wiki(0)
    title = next(title for title, revisions in state.articles.items() if len(revisions) == 3)
    second = state.articles[title][1]
    state.restore(title, 2)
    assert (state.latest(title).text, len(state.articles[title])) == (second.text, 4)
    with pytest.raises(SiteRefusal, match="no such revision"):
        state.restore(title, 9)


def test_a_player_that_meets_another_page_says_what_it_misses() -> None:
    (task,) = tasks_of("shop", "cart", 1)
    with pytest.raises(LookupError, match="Search products"):
        shop_pack().gold(task, [Message("user", "Goal: x\nurl: y\ntitle: z")])
