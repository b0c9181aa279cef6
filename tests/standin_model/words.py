"""The vocabulary that the training text is built from, grouped by the role a word plays in a sentence."""
# ruff: noqa: SIM905 - lists of hundreds of words read better as text

NAMES = tuple(
    """
    Tom Anna Maria James Lily Omar Nina Peter Sara Ben Mia Leo Emma Jack Ruth Paul Kate Sam Zoe Max Ella
    Noah Ivy Carl Rosa Hugo Jane Mark Amy Luke Eva Adam Lucy Dan Tina Alex John Mary David Laura Mike
    Susan Henry Alice Bob Carol Darrell Grace Kevin Julia Martin Olivia Simon Helen Victor Wendy Frank
    Diana Eric Fiona
    """.split()
)

THINGS = tuple(
    """
    apples books pencils coins stickers marbles cards eggs cookies tickets flowers stamps shells oranges
    pens cups boxes toys bottles chairs plants stones balloons cakes bags shirts hats keys letters photos
    buttons pages candles lemons plates sheep cows trees bricks dollars hours minutes pounds miles points
    songs
    """.split()
)

PLACES = tuple(
    """
    shop school market garden library park kitchen station farm museum office beach village bakery harbour
    hospital theatre bridge forest town river island hotel factory
    """.split()
)

JOBS = tuple(
    """
    teacher doctor farmer baker driver writer nurse painter pilot engineer student lawyer singer cook
    gardener scientist manager worker player artist reader neighbour friend brother sister mother father
    captain
    """.split()
)

ANIMALS = tuple(
    """
    dog cat horse cow sheep bird fish rabbit fox bear wolf lion tiger elephant mouse frog duck goat whale
    owl
    """.split()
)

TOPICS = tuple(
    """
    travel music history science cooking painting football chess gardening space weather trade language
    memory health sleep friendship reading nature energy water light time money design safety climate
    education culture technology business poetry photography computers medicine law cities oceans
    mountains animals bridges engines novels theatre mathematics physics chemistry biology economics
    philosophy psychology politics religion sport fashion food family work art film games machines
    networks software databases algorithms markets planets
    """.split()
)

ADJECTIVES = tuple(
    """
    small large quiet bright old new warm cold simple careful early late happy brave clear deep dry easy
    fair fast fresh gentle good great green heavy high honest important kind light long main modern narrow
    natural open plain proud quick rare real rich safe sharp short slow smooth soft special steady strong
    sweet tall thin true useful wide wild wise wooden young common different general local public several
    certain possible whole
    """.split()
)

VERBS = tuple(
    """
    finds keeps makes shows gives takes brings holds needs uses wants likes knows sees hears tells asks
    helps moves builds opens closes carries draws writes reads paints sells buys counts changes follows
    grows learns leaves loses meets offers plays prepares protects reaches remembers repairs saves shares
    starts studies teaches watches wins explains describes compares creates considers includes provides
    suggests supports
    """.split()
)

PLAIN_VERBS = tuple(
    """
    write describe explain compare list draft compose imagine develop suggest summarize discuss create
    design analyze evaluate identify provide rewrite translate classify extract edit plan outline prepare
    give tell show find solve implement determine consider assume explore craft produce generate review
    """.split()
)

COMMON = tuple(
    """
    the a of and to in is that it for was on are as with his they at be this from have or by one had not
    but what all were when we there can an your which their said if do will each about how up out them
    then she many some so these would other into has more her two like him see time could no make than
    first been its who now people my made over did down only way find use may water long little very after
    words called just where most know get through back much before go good new write our used me man too
    any day same right look think also around another came come work three word must because does part
    even place well such here take why things help put years different away again off went old number
    great men say small every found still between name should home big give air line set own under read
    last never us left end along while might next sound below saw something thought both few those always
    looked show large often together asked house world going want school important until form food keep
    children feet land side without boy once animal life enough took sometimes four head above kind began
    almost live page got earth need far hand high year mother light parts country father let night
    following picture being study second eyes soon times story boys since white days ever paper hard near
    sentence better best across during today others however sure means knew try told young miles sun ways
    thing whole hear example heard several change answer room sea against top turned learn point city play
    toward five using himself usually money seen car morning given total each per cost price percent half
    twice double remaining average minutes weekly daily week month buys sells pays earns spends saves
    gives gets takes costs weighs runs walks drives eats needs makes more fewer less please explain
    describe provide response previous question result value function string list return input output code
    program array integer python data system user model text paragraph summary title blog post email
    letter essay report review product company market customer service team project business experience
    professional people person character scene opening dialogue speech argument point opinion reason
    evidence fact claim theory method process step steps strategy approach problem solution challenge
    impact effect cause role benefit feature key main include including following based given able likely
    according particular current recent early government state president police court law case family
    child woman women group party war news club player match team league game season goal minute official
    authority hospital death attack member million billion according former expected
    """.split()
)

SYLLABLES = tuple(
    """
    ba be bi bo bra bri ca ce chi co cra da de di dor dre el en er fa fe fi fla fo ga ge gi go gra ha he
    hi ho il in is ja jo ka ke ki ko la le li lo lu ma me mi mo mu na ne ni no nu or pa pe pi po pra qua
    ra re ri ro ru sa se si so sta ste sto ta te ter ti to tra tri tu un va ve vi vo wa we wi xi ya yo za
    ze zi tion ment ness ing ed ly er est able ance ous ive al ic ist ism ure age ful less ship ward th sh
    ch ck ght nd st mp lk rt ould
    """.split()
)

FRAGMENTS = (
    "def f(x):\n    return x",
    "for i in range(10):",
    "if n == 0:",
    "print(result)",
    "import math",
    "x = [1, 2, 3]",
    "https://example.org/page?id=7",
    "user@example.com",
    "SELECT name FROM people",
    "<div>text</div>",
    '{"a": 1}',
    "f(x) = 5x^3 - 2x + 3",
    "$1,200",
    "3.14",
    "50%",
    "10:30 am",
    "#4",
    "A/B",
    "e.g.",
    "(see below)",
    "- item",
    "1.",
    "été",
    "naïve",
    "über",
    "señor",
    "你好",
    "世界",
    "привет",
    "мир",
    "こんにちは",
    "안녕",
    "→",
    "≥",
    "“quoted”",
    "it’s",
    "—",
    "class Node:",
    "while True:",
    "    pass",
    "def solve(numbers: list[int]) -> int:",
    '"""Return the sum."""',
    ">>> add(1, 2)",
    "return sorted(a)",
    "std::vector<int> v;",
    "int main() {",
    "}",
    "\\frac{a}{b}",
    "x^2 + y^2 = z^2",
)
