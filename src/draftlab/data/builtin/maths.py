"""Math prompts of the built-in generator: word problems of many kinds, arithmetic, algebra, geometry, concepts."""

from __future__ import annotations

from draftlab.data.builtin.templates import Domain, Family, pool

POOLS = {
    "name": pool("""
        Maya | Oliver | Priya | Lucas | Amara | Noah | Sofia | Kenji | Fatima | Ethan | Lena | Diego | Aisha | Henry |
        Mei | Jonas | Clara | Omar | Ruth | Samuel | Ines | Tomas | Greta | Malik | Nora | Victor | Elif | Peter | Hana
        | Marco | Julia | Ravi | Emma | Felix | Zoe | Daniel | Anna | Leo
    """),
    "item": pool("""
        apples | marbles | stickers | pencils | cookies | books | candles | buttons | oranges | stamps | seashells |
        postcards | muffins | balloons | beads | erasers | tickets | cupcakes | notebooks | crayons | lemons | coins |
        bracelets | eggs | tulips | pebbles
    """),
    "goods": pool("""
        notebook | water bottle | t-shirt | backpack | lamp | board game | movie ticket | scarf | mug | raincoat | paint
        set | football | headset | plant pot | calculator | hat | puzzle | blanket | keyboard | candle
    """),
    "container": pool("""
        boxes | bags | baskets | shelves | crates | jars | drawers | trays | cartons | envelopes
    """),
    "vehicle": pool("""
        car | train | scooter | cyclist | truck | boat | drone | van | motorbike | tram
    """),
    "place": pool("""
        bakery | library | school | garden | museum | farm | toy shop | market | theater | zoo | gym | cafe
    """),
    "person": pool("""
        a teacher | a farmer | a baker | a librarian | a coach | a gardener | a carpenter | a nurse | a chef
    """),
    "group": pool("""
        students | friends | children | players | guests | workers | campers | neighbors | dancers | singers
    """),
    "shape_fact": pool("""
        the area of a rectangle | the perimeter of a rectangle | the area of a triangle | the circumference of a circle
        | the area of a circle | the volume of a cube | the volume of a cylinder | the area of a trapezoid
    """),
    "concept": pool("""
        a prime number | a fraction | the greatest common divisor | the least common multiple | a percentage | the mean
        | the median | the mode | the Pythagorean theorem | a square root | an exponent | a negative number |
        probability | a variable | an equation | the order of operations | a ratio | a proportion | a linear function |
        slope | a quadratic equation | a factorial | an angle | a right triangle | symmetry | an average | a decimal
        number | long division | place value | rounding | an arithmetic sequence | a geometric sequence | a logarithm |
        a set | a derivative | standard deviation | a polynomial | a function | a coordinate plane | a permutation
    """),
    "audience": pool("""
        a 10-year-old | a beginner | a high school student | someone who dislikes math | a parent helping with homework
        | a new teacher | an adult who is going back to school | a friend
    """),
    "liquid": pool("""
        water | juice | milk | paint | fuel | soup | tea | lemonade
    """),
    "task": pool("""
        paint a fence | clean the pool | pack the boxes | mow the lawn | build a shed | sort the mail | print the
        posters
    """),
}

STEPS = (
    "\nPlease reason step by step, and put your final answer within \\boxed{}.",
    "\nPlease reason step by step, and put your final answer within \\boxed{}.",
    " Think step by step.",
    " Show your work.",
    " Explain each step briefly.",
    " Give the answer in one sentence.",
    " Let's think step by step.",
)

BUYING = (
    "«name» buys «a:2..9» «goods»s for $«b:3..18» each and pays with a $«=a*b+20-(a*b)%10» bill. How "
    "much change does «name» get?",
    "A «goods» costs $«p:20..90/5». It is on sale for «d:10..50/10»% off. What is the sale price?",
    "«name» has $«=a*b+c». After buying «a:2..8» «goods»s at $«b:4..15» each, how much money is left?«!c:5..40»",
    "At the «place», a «goods» costs $«a:5..25» and a «goods2» costs $«b:3..20». How much do «c:2..6» "
    "«goods»s and «d:2..6» «goods2»s cost together?",
    "«name» earns $«w:12..30» an hour and works «h:3..9» hours a day for «d:3..6» days. How much does "
    "«name» earn in total?",
    "«name» saves $«s:5..25» every week. How many weeks does it take to save enough for a «goods» that "
    "costs $«=s*n»?«!n:4..12»",
    "A «place» sold «a:20..90» tickets at $«b:4..12» each in the morning and «c:20..90» tickets in the "
    "afternoon at $«d:4..12» each. How much money did it take in?",
    "The price of a «goods» rose from $«a:20..60/2» to $«=a+a*k//100*1+k». By how many dollars did it rise?«!k:2..15»",
    "«name» splits a bill of $«=a*n» equally with «=n-1» friends. How much does each person pay?«!a:8..30»«!n:3..8»",
)

COUNTING = (
    "«name» has «a:12..80» «item». «name2» has «b:2..5» times as many. How many «item» do they have together?",
    "«name» had «=a+b+c» «item», gave «a:3..20» to «name2» and «b:3..20» to «name3». How many «item» are "
    "left?«!c:5..40»",
    "There are «=a*b» «item» packed equally into «a:3..12» «container». How many «item» are in each of "
    "the «container»?«!b:4..15»",
    "«person» puts «a:6..24» «item» into each of «b:4..15» «container». How many «item» are there in all?",
    "A «place» has «a:3..9» rows of «b:6..18» «item». If «c:4..20» are taken away, how many remain?",
    "«name» collects «a:4..15» «item» a day. How many «item» does «name» collect in «w:2..6» weeks?",
    "«a:3..9» «group» share «=a*b+c» «item» equally. How many does each get, and how many are left "
    "over?«!b:4..12»«!c:1..2»",
    "«name» has «a:10..40» more «item» than «name2». Together they have «=2*b+a» «item». How many does "
    "«name2» have?«!b:10..40»",
    "Half of the «=2*a» «group» at the «place» went home, and then «b:3..15» more arrived. How many are "
    "there now?«!a:8..40»",
    "In a box there are «a:4..12» red, «b:4..12» blue and «c:4..12» green «item». What is the "
    "probability of drawing a blue one?",
    "«name» read «a:12..40» pages on Monday, twice as many on Tuesday and «b:5..20» on Wednesday. How "
    "many pages is that?",
    "A class of «a:18..36» students has «b:3..12» more girls than boys. How many girls are there if that is possible?",
    "Every one of the «a:5..20» «group» shakes hands once with each of the others. How many handshakes are there?",
)

RATES = (
    "A «vehicle» travels «=s*t» kilometers in «t:2..8» hours. What is its average speed?«!s:30..95/5»",
    "A «vehicle» moves at «s:30..100/5» km/h. How far does it go in «t:2..9» hours?",
    "A «vehicle» leaves at «h:6..10»:00 and covers «=s*t» km at «s:40..90/10» km/h. When does it arrive?«!t:2..6»",
    "«name» can «task» in «a:2..9» hours and «name2» can do it in «b:2..9» hours. How long do they need together?",
    "A tank holds «=a*b» liters of «liquid» and is emptied at «a:3..15» liters a minute. How long does "
    "it take?«!b:6..30»",
    "If «a:3..9» workers «task» in «b:2..10» days, how many days would «=a*2» workers need?",
    "A recipe for «a:2..6» people needs «b:2..9» cups of «liquid». How many cups are needed for «=a*k» "
    "people?«!k:2..5»",
    "A «vehicle» uses «a:4..12» liters of fuel per 100 km. How many liters does it use for «=100*k» km?«!k:2..9»",
    "Two «vehicle»s start «=(a+b)*t» km apart and drive towards each other at «a:40..80/10» and "
    "«b:40..80/10» km/h. After how many hours do they meet?«!t:2..5»",
    "«name» runs «a:3..12» laps of «b:200..800/100» meters. How many kilometers is that?",
)

ARITHMETIC = (
    "What is «a:12..99» + «b:12..99»?",
    "What is «a:100..999» - «b:12..99»?",
    "Calculate «a:12..99» × «b:3..25».",
    "What is «=a*b» divided by «a:3..19»?«!b:6..40»",
    "Compute «a:2..20» + «b:2..12» × «c:2..12».",
    "Evaluate («a:3..20» + «b:3..20») × «c:2..9» - «d:2..30».",
    "What is «p:5..75/5»% of «n:40..600/20»?",
    "What is «a:2..12» squared plus «b:2..12» squared?",
    "Find the sum of the numbers from 1 to «n:10..60».",
    "Is «n:101..399» a prime number? Explain.",
    "What is the remainder when «a:100..900» is divided by «b:3..19»?",
    "Add the fractions «a:1..5»/«b:6..12» and «c:1..5»/«b».",
    "Write «a:1..9»/«b:10..25» as a decimal number.",
    "Round «a:1000..9999» to the nearest hundred.",
    "What is the greatest common divisor of «=a*g» and «=b*g»?«!a:2..9»«!b:2..9»«!g:3..12»",
    "What is the least common multiple of «a:4..18» and «b:4..18»?",
    "List all the factors of «n:24..144».",
    "What is 2 to the power of «n:4..12»?",
    "Order these numbers from smallest to largest: «a:1..99», «b:1..99», «c:1..99», «d:1..99».",
    "Find the average of «a:2..60», «b:2..60», «c:2..60» and «d:2..60».",
    "Find the median of «a:1..50», «b:1..50», «c:1..50», «d:1..50» and «e:1..50».",
    "Estimate «a:31..99» × «b:31..99» by rounding both numbers.",
    "Write the number «n:1000..9999» in words.",
    "Convert «a:2..40» feet to inches.",
    "Convert «a:2..30» kilometers to meters.",
    "How many minutes are in «a:2..30» hours?",
    "Convert «c:5..40» degrees Celsius to Fahrenheit.",
    "How many seconds are in «m:3..50» minutes?",
    "What is the next number in the sequence «a:2..9», «=a+d», «=a+2*d», «=a+3*d»?«!d:3..12»",
    "What is the next number in the sequence «a:2..5», «=a*r», «=a*r*r», «=a*r*r*r»?«!r:2..4»",
    "Simplify the fraction «=a*g»/«=b*g».«!a:2..7»«!b:8..13»«!g:2..9»",
    "Write «n:5..60» as a sum of two prime numbers, if possible.",
    "Which is larger, «a:2..9»/«b:10..15» or «c:2..9»/«d:10..15»?",
    "Convert the binary number 1«=a%2»0«=b%2»1 to decimal.«!a:0..9»«!b:0..9»",
)

ALGEBRA = (
    "Solve for x: «a:2..9»x + «b:2..30» = «=a*x+b».«!x:2..15»",
    "Solve for x: «a:2..9»x - «b:2..30» = «=a*x-b».«!x:4..15»",
    "Solve the equation «a:2..9»(x + «b:1..12») = «=a*(x+b)».«!x:2..12»",
    "Expand (x + «a:1..9»)(x + «b:1..9»).",
    "Factor x^2 + «=a+b»x + «=a*b».«!a:1..9»«!b:1..9»",
    "Solve x^2 = «=a*a».«!a:3..15»",
    "If y = «m:2..9»x + «b:1..15», what is y when x = «x:2..12»?",
    "What is the slope of the line through («a:0..5», «b:0..9») and («=a+d», «c:3..15»)?«!d:1..5»",
    "Simplify «a:2..9»x + «b:2..9»y - «c:1..5»x + «d:2..9»y.",
    "Solve the system x + y = «=x+y» and x - y = «=x-y».«!x:8..20»«!y:1..7»",
    "The sum of two numbers is «=a+b» and their difference is «=a-b». What are the numbers?«!a:20..50»«!b:3..19»",
    "Three consecutive numbers add up to «=3*n».«!n:8..60» What are they?",
    "«name» is «a:3..20» years older than «name2». In «b:2..10» years their ages will add up to "
    "«=2*c+a+2*b».«!c:6..30» How old is «name2» now?",
    "A number is multiplied by «a:2..9» and then «b:3..20» is added. The result is «=a*n+b».«!n:3..20» "
    "What is the number?",
    "Write an equation for this: «name» has twice as many «item» as «name2», and together they have «=3*n».«!n:5..30»",
    "If f(x) = x^2 - «a:1..9»x + «b:1..9», find f(«c:2..8»).",
    "Find the derivative of «a:2..9»x^«n:2..5» + «b:2..9»x.",
)

GEOMETRY = (
    "Find the area of a rectangle that is «a:4..30» cm long and «b:3..20» cm wide.",
    "A square has a perimeter of «=4*a» meters.«!a:3..25» What is its area?",
    "A triangle has a base of «=2*a» cm and a height of «b:3..20» cm.«!a:2..15» What is its area?",
    "A circle has a radius of «r:2..15» cm. What is its area?",
    "A right triangle has legs of «=3*k» and «=4*k». How long is the hypotenuse?«!k:1..9»",
    "What is the volume of a box that is «a:2..12» by «b:2..12» by «c:2..12» cm?",
    "Two angles of a triangle are «a:30..80» and «b:30..80» degrees. What is the third angle?",
    "A garden is «a:6..30» m long and «b:4..20» m wide. How many meters of fence go around it?",
    "How many tiles of 1 square foot are needed for a floor of «a:8..20» by «b:8..20» feet?",
    "A cube has an edge of «a:2..12» cm. What is its surface area?",
    "A wheel has a diameter of «d:20..70/5» cm. How far does it roll in «n:5..50/5» turns?",
    "What is the sum of the interior angles of a polygon with «n:5..12» sides?",
    "A ladder of «=5*k» feet leans on a wall, its foot «=3*k» feet away. How high does it reach?«!k:2..6»",
)

CONCEPTS = (
    "Explain «concept» to «audience».",
    "What is «concept»? Give an example.",
    "Write a short practice question about «concept» and then answer it.",
    "Why is «concept» useful in daily life?",
    "Explain how to find «shape_fact» to «audience».",
    "What is the formula for «shape_fact»? Give one example.",
    "Describe «concept» in two sentences.",
    "Make up a word problem about «concept» that involves «item», and solve it.",
    "What mistakes do people often make with «concept»?",
    "Create a word problem about «item» for «audience» that uses division.",
    "Give three facts about «concept».",
    "Write a word problem about «person» at a «place» that uses multiplication, and solve it.",
)

DOMAIN = Domain(
    families=(
        Family(3, BUYING, STEPS),
        Family(4, COUNTING, STEPS),
        Family(3, RATES, STEPS),
        Family(2, ARITHMETIC, STEPS),
        Family(2, ALGEBRA, STEPS),
        Family(2, GEOMETRY, STEPS),
        Family(2, CONCEPTS),
    ),
    pools=POOLS,
)
