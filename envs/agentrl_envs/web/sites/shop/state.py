"""State of a shop for one customer, and the changes that can be made to it.

Every change goes through a method, which raises `SiteRefusal` with what the customer is told.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Literal

from agentrl.runtime.seeds import derive
from agentrl_envs.web.sites.asgi import SiteRefusal
from agentrl_envs.web.sites.shop.catalogue import ShopCatalogue, ShopProduct, catalogue

DELIVERIES = {"standard": 490, "express": 990, "pickup": 0}
"""Cost of each kind of delivery, in cents."""
COUPONS = {"SAVE10": 10, "SPRING20": 20, "WELCOME5": 5}
"""Per cent that a code takes off."""
REASONS = ("damaged", "wrong item", "changed my mind", "too late")
QUANTITY_MAX = 9
Status = Literal["processing", "shipped", "delivered", "cancelled"]


@dataclass(slots=True, kw_only=True)
class CartLine:
    """Some of one product in one colour."""

    product: str
    """Its id."""
    colour: str
    quantity: int


@dataclass(slots=True, kw_only=True)
class DeliveryAddress:
    """Address to which something is sent."""

    id: int
    name: str
    street: str
    city: str
    postcode: str

    @property
    def line(self) -> str:
        """Return the address on one line."""
        return f"{self.name}, {self.street}, {self.postcode} {self.city}"


@dataclass(slots=True, kw_only=True)
class ProductReturn:
    """A product that is sent back."""

    product: str
    reason: str


@dataclass(slots=True, kw_only=True)
class ShopOrder:
    """Goods that were bought, with their delivery."""

    id: int
    lines: list[CartLine]
    address: DeliveryAddress
    delivery: str
    coupon: str
    total_cents: int
    status: Status = "processing"
    returns: list[ProductReturn] = field(default_factory=list[ProductReturn])


@dataclass(slots=True, kw_only=True)
class ProductReview:
    """Opinion of the customer on a product."""

    product: str
    stars: int
    text: str


@dataclass(slots=True, kw_only=True)
class ShopState:
    """One customer's shop. `copy.deepcopy` copies everything but the catalogue."""

    catalogue: ShopCatalogue
    name: str
    email: str
    phone: str = ""
    newsletter: bool = True
    cart: list[CartLine] = field(default_factory=list[CartLine])
    coupon: str = ""
    orders: list[ShopOrder] = field(default_factory=list[ShopOrder])
    addresses: list[DeliveryAddress] = field(default_factory=list[DeliveryAddress])
    default_address: int = 1
    wishlist: list[str] = field(default_factory=list[str])
    reviews: list[ProductReview] = field(default_factory=list[ProductReview])

    def product(self, id: str) -> ShopProduct:
        """Return a product of the catalogue."""
        if id not in self.catalogue.products:
            raise SiteRefusal("There is no such product.")
        return self.catalogue.products[id]

    def add_to_cart(self, id: str, colour: str, quantity: int) -> None:
        """Put some of a product into the cart, or more of it where there is some already."""
        product = self.product(id)
        if colour not in product.colours:
            raise SiteRefusal("Please choose a colour.")
        line = next((x for x in self.cart if (x.product, x.colour) == (id, colour)), None)
        cart_quantity = line.quantity if line else 0
        if quantity < 1 or cart_quantity + quantity > QUANTITY_MAX:
            raise SiteRefusal(f"Please choose 1 to {QUANTITY_MAX} of a product.")
        if line is None:
            self.cart.append(CartLine(product=id, colour=colour, quantity=quantity))
        else:
            line.quantity += quantity

    def set_quantity(self, place: int, quantity: int) -> None:
        """Change how many there are of a line of the cart; none removes it."""
        if not 0 <= place < len(self.cart):
            raise SiteRefusal("This is not in your cart any more.")
        if not 0 <= quantity <= QUANTITY_MAX:
            raise SiteRefusal(f"Please choose 0 to {QUANTITY_MAX} of a product.")
        if quantity:
            self.cart[place].quantity = quantity
        else:
            del self.cart[place]

    def use_coupon(self, code: str) -> None:
        """Take a code's share off the cart."""
        if code.strip().upper() not in COUPONS:
            raise SiteRefusal("This coupon code is not valid.")
        self.coupon = code.strip().upper()

    @property
    def goods_cents(self) -> int:
        """Price of the cart without delivery."""
        full = sum(self.product(x.product).price_cents * x.quantity for x in self.cart)
        return full - full * COUPONS.get(self.coupon, 0) // 100

    def order(self, *, address: int, delivery: str, accepted: bool) -> ShopOrder:
        """Buy what is in the cart."""
        if not self.cart:
            raise SiteRefusal("Your cart is empty.")
        if delivery not in DELIVERIES:
            raise SiteRefusal("Please choose a delivery.")
        if not accepted:
            raise SiteRefusal("Please accept the terms and conditions.")
        order = ShopOrder(
            id=max((x.id for x in self.orders), default=1000) + 1,
            lines=self.cart,
            address=self.address(address),
            delivery=delivery,
            coupon=self.coupon,
            total_cents=self.goods_cents + DELIVERIES[delivery],
        )
        self.cart, self.coupon = [], ""
        self.orders.append(order)
        return order

    def order_of(self, id: int) -> ShopOrder:
        """Return an order of this customer."""
        for order in self.orders:
            if order.id == id:
                return order
        raise SiteRefusal("There is no such order.")

    def cancel(self, id: int) -> None:
        """Cancel an order that was not sent."""
        order = self.order_of(id)
        if order.status != "processing":
            raise SiteRefusal("Only an order that is processing can be cancelled.")
        order.status = "cancelled"

    def send_back(self, id: int, product: str, reason: str) -> None:
        """Return a product of an order that has arrived."""
        order = self.order_of(id)
        if order.status != "delivered":
            raise SiteRefusal("Only an order that was delivered can be returned.")
        if product not in [line.product for line in order.lines]:
            raise SiteRefusal("Please choose an item of this order.")
        if product in [item.product for item in order.returns]:
            raise SiteRefusal("This item is being returned already.")
        if reason not in REASONS:
            raise SiteRefusal("Please choose a reason.")
        order.returns.append(ProductReturn(product=product, reason=reason))

    def order_again(self, id: int) -> None:
        """Put what an order had into the cart."""
        for line in self.order_of(id).lines:
            self.add_to_cart(line.product, line.colour, line.quantity)

    def address(self, id: int) -> DeliveryAddress:
        """Return an address of this customer."""
        for address in self.addresses:
            if address.id == id:
                return address
        raise SiteRefusal("Please choose an address.")

    def add_address(self, *, name: str, street: str, city: str, postcode: str) -> DeliveryAddress:
        """Add an address to the account."""
        fields = {"name": name, "street": street, "city": city, "postcode": postcode}
        fields = {key: " ".join(value.split()) for key, value in fields.items()}
        for key, value in fields.items():
            if not value:
                raise SiteRefusal(f"Please fill in the {key}.")
        if not (fields["postcode"].isdigit() and len(fields["postcode"]) == 5):
            raise SiteRefusal("A postcode has five digits.")
        address = DeliveryAddress(id=max((x.id for x in self.addresses), default=0) + 1, **fields)
        self.addresses.append(address)
        return address

    def make_default(self, id: int) -> None:
        """Use an address where no other is chosen."""
        self.default_address = self.address(id).id

    def remove_address(self, id: int) -> None:
        """Remove an address that is not the default."""
        if self.address(id).id == self.default_address:
            raise SiteRefusal("The default address cannot be removed.")
        self.addresses = [address for address in self.addresses if address.id != id]

    def update_account(self, *, name: str, email: str, phone: str, newsletter: bool) -> None:
        """Change who the customer is."""
        name, email, phone = (" ".join(text.split()) for text in (name, email, phone))
        if not name:
            raise SiteRefusal("Please fill in the name.")
        user, at, domain = email.partition("@")
        if not (user and at and "." in domain):
            raise SiteRefusal("This is not an e-mail address.")
        self.name, self.email, self.phone, self.newsletter = name, email, phone, newsletter

    def wish(self, id: str) -> None:
        """Put a product on the wish list."""
        if self.product(id).id not in self.wishlist:
            self.wishlist.append(id)

    def unwish(self, id: str) -> None:
        """Take a product off the wish list."""
        self.wishlist = [wished for wished in self.wishlist if wished != id]

    def review(self, id: str, stars: int, text: str) -> None:
        """Review a product."""
        if not 1 <= stars <= 5:
            raise SiteRefusal("Please choose 1 to 5 stars.")
        if not text.strip():
            raise SiteRefusal("Please write a few words.")
        text = " ".join(text.split())
        self.reviews.append(ProductReview(product=self.product(id).id, stars=stars, text=text))


_NAMES = ("Ada Finch", "Ben Holm", "Cleo Hart", "Dan Ives", "Eva Lund", "Finn Moor")
_STREETS = ("Mill Lane", "Station Road", "Park Street", "Harbour Row", "Castle Hill")
_CITIES = ("Aldwick", "Brenton", "Carlow", "Densham", "Eastmere")


def shop(seed: int) -> ShopState:
    """Return the shop of a customer who has bought before: three orders and two addresses."""
    random = Random(derive("shop state", seed))
    goods = catalogue(seed)
    name = random.choice(_NAMES)
    state = ShopState(
        catalogue=goods, name=name, email=f"{name.split()[0].lower()}@mail.example", phone=""
    )
    for street, city in zip(random.sample(_STREETS, 2), random.sample(_CITIES, 2), strict=True):
        state.add_address(
            name=name,
            street=f"{random.randrange(2, 90)} {street}",
            city=city,
            postcode=str(random.randrange(10000, 99999)),
        )
    statuses: list[Status] = ["delivered", "shipped", "processing"]
    for status in statuses:
        for product in random.sample(list(goods.products.values()), 2):
            state.add_to_cart(product.id, random.choice(product.colours), random.randrange(1, 3))
        state.order(address=1, delivery=random.choice(list(DELIVERIES)), accepted=True)
        state.orders[-1].status = status
    return state
