"""A made-up country as pages: towns, rivers, people, ships and guilds, with relations and names that are shared."""

import random

from arcforge_rl.search.pages import ALIASES, KIND, page_of

FIRST = "Ada Bram Cleo Dorn Elsa Finn Gerd Hilda Ivo Jutta Karl Lene Milo Nora Otto"
LAST = "Abel Brook Crane Dorsal Ember Frost Gale Harrow Ingot Juniper Kestrel Lark Marl Nettle Osier"
TOWNS = "Alder Birch Cedar Dune Elm Fern Gorse Heath Ivy Kelp Larch Moss Nutmeg Oak Pine Reed Sedge Thorn"
RIVERS = "Arrow Bell Cold Drift Even Ford Glass Hollow"
SHIPS = "Albatross Bittern Curlew Dipper Egret Fulmar Gannet Heron Kittiwake Lapwing Merlin Osprey Petrel"
GUILDS = "Bakers Coopers Dyers Glaziers Potters Weavers"
WORDS = """
    amber anvil autumn bellows brass bridge bronze candle canvas carpet castle cellar chapel charcoal cheese chimney
    cloth clover cobble copper coral cotton cradle crystal dagger dancing drums eagle embers fable fiddle flint flour
    forge fountain garden garlic ginger gloves granite hammer harbour harvest hazel herring honey horses indigo island
    ivory jasper kettle ladder lantern laurel leather lemons letters linen lizard lumber malted maple marble market
    meadow mirror molten mosaic mustard needle nettle oats olives onyx orchard oysters paddle paper pearls pebble pepper
    pewter pigeon plough plums poppy quartz quilt raisin ribbon riddle saddle saffron salmon scarlet shovel silver slate
    spindle sponge stable starch stove sugar tallow tapestry temple thimble timber tinder topaz trumpet tunnel turnip
    umber valley vellum velvet vinegar walnut water wheat whistle willow window winter
"""


def made_up_pages(seed=0):
    """Returns about 130 pages, the same for the same seed."""
    draw = random.Random(f"country/{seed}")
    words_known = WORDS.split()
    people = draw.sample([f"{a} {b}" for a in FIRST.split() for b in LAST.split()], 72)
    towns, rivers = [f"{name}wick" for name in TOWNS.split()], [f"River {name}" for name in RIVERS.split()]
    ships, guilds = [f"The {name}" for name in SHIPS.split()], [f"Guild of {name}" for name in GUILDS.split()]
    pages = []

    def page(title, kind, aliases=(), **facts):
        words = draw.sample(words_known, 4)
        prose = f"People speak of {words[0]} and {words[1]}. Some add {words[2]}, and, once a year, {words[3]}."
        named = {label.replace("_", " "): values for label, values in facts.items()}
        pages.append(page_of(title, {KIND: [kind], ALIASES: [*aliases], **named}, prose, title))

    for town in towns:
        page(town, "town", [town.removesuffix("wick")], Lies_on=[draw.choice(rivers)])
    for river in rivers:
        page(river, "river")
    for guild in guilds:
        page(guild, "guild", [guild.removeprefix("Guild of ")], Seat=[draw.choice(towns)])
    for ship in ships:
        page(ship, "ship", Built_in=[draw.choice(towns)], Captains=draw.sample(people, 2))
    for person in people:
        first, last = person.split()
        facts = {"Born_in": [draw.choice(towns)], "Member_of": [draw.choice(guilds)]}
        if draw.random() < 0.5:
            facts["Taught_by"] = [draw.choice([one for one in people if one != person])]
        page(person, "person", [f"{first[0]}. {last}"], **facts)
    return pages
