"""Words that tasks are made of: names, places and things, some of them beyond ASCII."""

FIRST_NAMES = (
    *("Ada", "Björn", "Chloé", "Deniz", "Emil", "Fatima", "Grete", "Hugo", "Inés", "Jonas"),
    *("Kira", "Liam", "Mónica", "Nadia", "Oskar", "Pilar", "Rosa", "Søren", "Tilda", "Yusuf"),
)
LAST_NAMES = (
    *("Alder", "Birch", "Castro", "Dubois", "Eriksen", "Fischer", "Grün", "Holm", "Ivanov"),
    *("Jansen", "Kowal", "Lindqvist", "Moreau", "Novak", "Okafor", "Pérez", "Quinn", "Rossi"),
)
CITIES = (
    *("Aarhus", "Bergen", "Córdoba", "Dublin", "Exeter", "Florence", "Göteborg", "Haarlem"),
    *("Izmir", "Jena", "Kraków", "Lyon", "Málaga", "Nantes", "Odense", "Porto", "Zürich"),
)
COLOURS = ("Red", "Green", "Blue", "Yellow", "Purple", "Orange", "Black", "White", "Brown", "Grey")
THINGS = (
    *("Apples", "Bread", "Candles", "Dates", "Eggs", "Flour", "Grapes", "Honey", "Ink", "Jam"),
    *("Kale", "Lamps", "Milk", "Nuts", "Olives", "Paper", "Quinces", "Rice", "Salt", "Tea"),
)
OPTIONS = {
    "Size": ("Small", "Medium", "Large", "Huge"),
    "Delivery": ("Standard", "Express", "Pickup"),
    "Payment": ("Cash", "Card", "Transfer"),
    "Language": ("English", "German", "French", "Spanish"),
    "Season": ("Spring", "Summer", "Autumn", "Winter"),
}
"""Names of fields, and the choices in each."""
WORDS = (
    *("river", "stone", "garden", "winter", "silver", "paper", "window", "forest", "candle"),
    *("bridge", "harbour", "morning", "engine", "market", "island", "letter", "mirror", "cloud"),
)
