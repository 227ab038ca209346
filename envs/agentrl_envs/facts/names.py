"""The words that names are made of. Every name of a world is used once in it."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


GIVEN = _words(
    "Adela Bruno Cora Dario Edda Falko Greta Hanno Ilsa Joren Katja Lorin Mira Niko Odile Piet "
    "Quilla Rasmus Selma Tovan Ulla Viktor Wanda Xaver Yella Zeno Anouk Basil Clio Dorian"
)
FAMILY = _words(
    "Abend Brask Calder Dorn Elster Farrow Gant Halvik Imber Jessen Korda Lunde Marsh Novak Orrin "
    "Pell Quist Rothe Stahl Tolden Umber Vance Wick Yarrow Zeller Ashby Birk Croft Drummond "
    "Eskel"
)
TOWN_BEGINNINGS = _words("Ar Bel Cor Dun El Fen Gal Hol Is Jor Kel Lin Mor Nor Os Pel")
TOWN_ENDINGS = _words("vane ford wick mere stad bury holm gate dale haven moor ness")
COUNTRIES = _words(
    "Veska Ostmark Lurania Tavia Merrow Calden Sorrel Brenia Halland Ilmaria Kestrel Norvia "
    "Quenland Rhodia Silvany Torland Umbria Wendmark Yarland Zephyria Aldoria Borland Cresta "
    "Drovia Estmark Fenland Garvia Heltland Istria Jutmark"
)
WORK_ADJECTIVES = _words(
    "Silver Hollow Crimson Quiet Broken Golden Frozen Hidden Amber Distant Velvet Iron Paper "
    "Wandering Burning Pale Second Last Blue Winter"
)
WORK_NOUNS = _words(
    "Harbour Garden Lantern Bridge Mirror Orchard Tower River Clock Voyage Letter Island Door "
    "Compass Meadow Crown Shadow Mountain Lighthouse Window"
)
EVENT_BEGINNINGS = _words(
    "Barley Candle Drum Ember Feather Glass Honey Ivory Juniper Kite Linen Maple Needle Olive "
    "Pepper Quartz Ribbon Saffron Thistle Willow"
)
EVENT_ENDINGS = _words("Fair Festival Regatta Parade Congress Games")
RIVERS = _words(
    "Aune Brill Ceder Dove Esk Fal Gleam Hart Iven Jarl Kess Lode Maun Nidd Orr Prim Quay Rill "
    "Swale Tarn"
)
TRADES = _words("potter baker surveyor pilot chemist weaver printer gardener")
FORMS = _words("novel opera poem play film symphony")
