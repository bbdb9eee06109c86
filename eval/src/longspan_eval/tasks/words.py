"""Words to make keys, names and lists of; lists of our own, in alphabetical order."""

from __future__ import annotations


def split(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


ADJECTIVES = split("""
able absent abundant active agile alert amber ample ancient angular anxious apt aquatic arctic ardent artful ashen
astute aware awkward balanced bare bashful basic beige blank bleak blond blunt bold bony bossy bouncy brave breezy
brief bright brisk brittle broad bronze bumpy busy calm candid careful careless casual cautious charming cheap
cheerful chilly chunky civil clean clear clever cloudy clumsy coarse cold colossal comfy common compact content cool
cosy courteous crafty creamy crimson crisp crooked crowded cruel crunchy cubic curious curly curved cyan dainty damp
daring dark dear deep deft delicate dense devoted dim direct distant dizzy docile double dreamy drowsy dry dull dusky
dusty eager early earnest easy elastic elder elegant empty endless equal exact exotic faint fair faithful famous fancy
fast fearless feeble fertile festive fierce fiery final fine firm flat fleet flimsy floral fluent fluffy foamy foggy
fond formal fragile frail frank fresh friendly frosty frozen frugal full funny furry fuzzy gaudy gentle genuine giant
giddy gifted glad gleaming gloomy glossy golden graceful grand grassy grateful grave greedy grim gritty grumpy handy
happy hardy harsh hasty hazy healthy hearty heavy helpful hidden hollow honest hopeful humble humid hungry icy idle
immense jolly jovial joyful keen kind large late lavish lazy leafy lean limp lively local lofty lonely long loose loud
lovely loyal lucid lucky lunar lush magic major marine meek mellow merry messy mighty mild minor misty modern modest
moist muddy murky musical mute narrow nasty neat nervous nimble noble noisy novel numb oaken obedient odd oily orderly
ornate outer oval pale patient perky petite placid plain playful plump poetic polite proper proud prudent pure quaint
quick quiet rapid rare ready regal remote rich rigid ripe robust rosy rough round rowdy royal rugged rural rustic
rusty sacred salty sandy savvy scarce secret serene severe shabby shaggy shallow sharp shiny shy silent silky silly
simple sincere sleek sleepy slender slim slow small smart smooth snowy sober soft solemn solid sour spare spicy spiky
spry square stable stale stark steady steep stern sticky stiff stormy stout strict strong sturdy subtle sudden sunny
superb supple sweet swift tall tame tart tasty teal tender tense thick thin thirsty thorny tidy timid tiny tired tough
tranquil tropical true twisted urban useful vague vain valid vast velvet vibrant vivid warm wary watery wavy weary
weird wet white whole wide wild wintry wise witty wobbly wooden woolly worthy young zealous zesty
""")

NOUNS = split("""
acorn acrobat actor album alley almond anchor angle ankle antler apple apron arch arena arrow artist atlas attic
author avocado axle bakery balcony ballad ballet balloon bamboo banana banjo banner barber barn barrel basil basin
basket bathtub battery beach beacon bead beak beaver bedroom beehive beetle bell bench berry bicycle bird biscuit
bishop blanket blossom boat bonnet book boot border bottle boulder bowl bracelet branch bread breeze brick bridge
broom brush bucket buckle bugle bundle burrow bush butter button cabbage cabin cable cactus cage cake calendar camel
camera canal canary candle cannon canoe canvas canyon captain caravan carpet carrot castle cat cathedral cavern
ceiling cellar chain chair chalk channel chapel chariot cherry chess chestnut chimney cider cinema circle circus city
clarinet clay cliff cloak clock closet cloud clover coast cobweb coconut coffee coin collar comet compass concert
copper coral cork corridor cottage cotton couch cousin cradle crane crate crayon creek cricket crocus crown crumb
crystal cuckoo cucumber cup cupboard curtain cushion daisy dancer delta dentist desert desk diamond diary dice dinner
dolphin donkey door dove dragon drawer drum duck dune eagle easel echo elbow elephant elm engine envelope estate
falcon farmer feather fence ferry fiddle field finch fire flag flame flask flute foal forest fork fossil fountain fox
frame frog fruit funnel galaxy gallery garage garden garlic gate gazelle geyser giraffe glacier glass globe glove goat
goblet goose grape gravel guitar gull hamlet hammer hammock harbour harp hat hawk hazel hedge helmet heron highway
hill hinge honey hook horizon horse hotel house iceberg inn island ivy jacket jaguar jam jar jelly jewel jigsaw judge
jug jungle kettle key kitchen kite kitten knight knot label ladder lagoon lake lamp lantern lark laundry lawn leaf
ledge lemon leopard letter library lighthouse lily linen lion lizard lobster locket lodge log lotus lute magnet magpie
mailbox mango mansion map maple marble market mask mast meadow medal melody melon mermaid meteor mill mirror mitten
monk monkey moon mosaic moss moth motor mountain mouse muffin mural museum mushroom napkin necklace needle nest nettle
notebook novel nutmeg oak oar oasis ocean octopus office olive onion opera orange orbit orchard orchid organ otter
oven owl oyster paddle painter palace palm panda panther papaya paper parade parcel parrot pasture path peach peacock
peanut pear pearl pebble pelican pencil penguin pepper piano pickle pigeon pillow pilot pine pirate planet plate plaza
plum pocket poet pond pony poppy porch potato pottery prairie prince prism puddle pumpkin puppet puzzle pyramid quarry
queen quill quilt rabbit raccoon radio radish raft rain ranch raven reef ribbon rice ring river road robin robot
rocket roof rooster root rope rose ruby ruler saddle sailor salad salmon sandal satchel saucer scarf school scissors
scooter seal shadow shed shelf shell shepherd ship shoe shore shovel shrub sister skate sketch sled slipper snail snow
soap sofa soldier soup spade sparrow spider spinach spiral spoon spruce squirrel stable star statue stone stork storm
stove straw street suitcase summit sunset swan swing sword table tailor teacher teapot temple tent thimble thistle
throne thumb ticket tiger tomato torch tower tractor trail train treasure tree trumpet trunk tulip tunnel turkey
turnip turtle twig umbrella uncle valley vase vessel village vine violin volcano wagon waiter wallet walnut walrus
waterfall wave weasel whale wheat wheel whistle willow window wizard wolf woodpecker wreath yacht yard zebra
""")

ISLANDS = split("""
Amber Autumn Birch Bramble Cedar Cinder Copper Coral Crescent Driftwood Ebony Echo Emerald Falcon Feather Fern Flint
Fog Garnet Ginger Harbour Hazel Heron Hollow Indigo Iron Ivory Jasper Juniper Lantern Lichen Lily Marble Meadow Mirror
Moss Ochre Olive Onyx Opal Orchid Otter Pebble Pepper Raven Saffron Sand Scarlet Silver Slate Sparrow Swallow Thistle
Thunder Timber Tulip Velvet Violet Walnut Willow
""")

KINDS = split("""
Amethyst Aurora Comet Crystal Dragon Dream Dusk Eclipse Ember Frost Ghost Gossamer Lightning Lunar Mercury Midnight
Nebula Obsidian Phantom Phoenix Platinum Quartz Rainbow Ruby Sapphire Shadow Solar Spirit Stardust Tempest Topaz
Twilight Whisper Winter Zephyr
""")

THINGS = split("""
Amulet Anchor Arrow Bell Blade Bubble Chalice Cloak Compass Crown Dagger Drum Flask Flute Gauntlet Goblet Hammer Harp
Helmet Hourglass Key Lamp Mask Medallion Pearl Pendant Plume Quill Ring Sceptre Scroll Shard Shield Staff Tome Trident
""")
