"""Chat prompts of the built-in generator: questions, advice, letters, stories, comparisons, lists, roleplay, texts."""

from __future__ import annotations

from draftlab.data.builtin.passages import PASSAGES, REVIEWS
from draftlab.data.builtin.templates import Domain, Family, pool

POOLS = {
    "passage": PASSAGES,
    "review": REVIEWS,
    "thing": pool("""
        a rainbow | the moon | photosynthesis | gravity | a volcano | the water cycle | an earthquake | the human heart
        | a black hole | electricity | the stock market | inflation | a vaccine | the immune system | a computer | the
        internet | a battery | a microwave oven | a glacier | a hurricane | DNA | evolution | a solar panel | a wind
        turbine | an airplane | a submarine | a compass | a telescope | a magnet | sound | the ozone layer | a coral
        reef | a desert | a tsunami | a tax | a mortgage | an election | a constitution | a supply chain | a credit card
        | yeast | chocolate | paper | a thermometer | a search engine | artificial intelligence | a virus | a database |
        machine learning | a barcode | GPS | a refrigerator | soap | a bicycle | a clock | a camera | glass | steel | a
        tide | a fossil | an eclipse | a comet | a neuron | sleep | a dream | memory | an allergy
    """),
    "goal": pool("""
        sleep better | learn a new language | save money | prepare for a job interview | eat healthier | run my first 5
        km | be more organized | make new friends | read more books | reduce stress | write a novel | learn to cook |
        speak in public | study for an exam | work from home | start a garden | learn the guitar | drink more water |
        stop procrastinating | wake up earlier | be a better listener | plan a wedding | move to a new city | train a
        puppy | take better photos | ask for a raise | manage my time | learn to swim | improve my memory | keep a
        journal | spend less time on my phone | stay motivated | clean my home faster | improve my handwriting | start a
        small business | choose a career | get along with a roommate | travel on a budget | stretch every day | learn to
        draw
    """),
    "topic": pool("""
        friendship | climate change | space travel | healthy food | the ocean | public libraries | music | teamwork |
        honesty | social media | exercise | recycling | small towns | books | public transport | pets | winter | museums
        | volunteering | education | sleep | technology | bees | cooking | kindness | bicycles | forests | patience |
        remote work | history | football | creativity | coffee | dogs | cats | autumn | the sea | mountains | family
        dinners | learning from mistakes | city parks | board games | letters | gratitude | courage | trains | tea |
        gardens | rain | stars | laughter | breakfast
    """),
    "hero": pool("""
        a shy dragon | a lost robot | a brave mouse | an old sailor | a curious girl | a talking tree | a baker | a
        lonely lighthouse keeper | a young inventor | a forgetful wizard | a detective | an astronaut | a small cloud |
        a stray cat | a tired king | a musician | a gardener | twins | a ghost | a painter | a clockmaker | a fox | a
        librarian | a snail who wants to race | a boy who cannot sleep | a penguin | a pirate | a postman | a chess
        player | an owl
    """),
    "event": pool("""
        finds a hidden door | loses a map | makes an unlikely friend | must cross a desert | learns to say sorry | wins
        a strange prize | hears a mysterious song | travels back in time | saves a village | discovers a secret garden |
        meets a stranger | gets stuck in an elevator | plants a magic seed | breaks a promise | finds a letter from the
        past | builds a boat | solves a riddle | wakes up in another city | faces a storm | opens a small shop | learns
        to dance
    """),
    "recipient": pool("""
        my landlord | my teacher | my boss | a friend | a customer | my neighbor | a colleague | my grandmother | the
        school principal | a hotel | my coach | an online shop | the city council | a former classmate | my doctor | a
        professor | the library | my team | a new employee | my insurance company
    """),
    "matter": pool("""
        to ask for a day off | to complain about noise | to say thank you | to apologize for being late | to cancel an
        appointment | to ask for a refund | to invite them to a party | to ask for more time | to ask about opening
        hours | to recommend a book | to report a broken heater | to congratulate them | to ask for advice | to
        reschedule a meeting | to introduce myself | to ask for a letter of recommendation | to decline an invitation |
        to announce good news | to follow up after an interview | to ask for help with moving
    """),
    "tone": pool("""
        polite | friendly | formal | short | warm | cheerful | professional | honest
    """),
    "one": pool("""
        tea | cats | summer | books | trains | city life | coffee | renting | online learning | running | email | a
        laptop | the sun | a lake | butter | a novel | chess | working at home | a museum | the piano | a democracy | a
        frog | a crocodile | a planet | weather | a symphony | yoga | savings | an apple | wool | rice | a violin
    """),
    "two": pool("""
        coffee | dogs | winter | movies | planes | country life | hot chocolate | buying | classroom learning | swimming
        | a phone call | a tablet | the moon | a river | oil | a short story | checkers | working in an office | a
        library | the guitar | a monarchy | a toad | an alligator | a star | climate | an opera | pilates | investments
        | a pear | cotton | pasta | a cello
    """),
    "role": pool("""
        a travel guide | a friendly doctor | a history teacher | a pirate | a chef | a job interviewer | a personal
        trainer | a robot from the future | a librarian | a weather reporter | a knight | an astronaut | a sports
        commentator | a wise grandmother | a detective | a museum guide | a gardener | a poet | a science teacher | a
        tour guide in Rome
    """),
    "request": pool("""
        tell me about your day | give me advice for a rainy day | explain why the sky is blue | recommend a simple
        dinner | welcome me to your world | tell me a short story | help me choose a gift for a friend | explain why
        sleep matters | teach me one new thing | describe your favorite place | answer this: what makes a good leader? |
        motivate me to exercise | plan my weekend | explain what money is | talk about the sea | introduce yourself |
        ask me three questions | describe a sunrise
    """),
    "listed": pool("""
        healthy breakfasts | things to do on a rainy day | gifts for a teacher | ways to save energy at home | questions
        to ask in a job interview | books for a long trip | indoor plants | animals that live in the ocean | countries
        in Europe | ways to say thank you | ideas for a birthday party | things to pack for a beach trip | uses for an
        old jar | team names for a quiz | exercises without equipment | famous scientists | cheap dinners | words that
        describe the weather | hobbies for the winter | icebreaker questions | fruits that grow on trees | ways to help
        a friend | names for a cafe | safety rules for the kitchen | things that need electricity | musical instruments
        | reasons to learn history | games for a car ride | topics for a school essay | signs of a good friend |
        vegetables that are green | jobs that help people | inventions that changed the world | tips for new drivers
    """),
    "place": pool("""
        Paris | Tokyo | Rome | New York | London | Cairo | Sydney | Istanbul | Lisbon | Kyoto | Vienna | Mexico City |
        Cape Town | Barcelona | Prague | Iceland | Morocco | Norway | Peru | Thailand | Greece | Ireland | Canada |
        Vietnam | New Zealand | Scotland | Brazil | India | Kenya | Switzerland
    """),
    "dish": pool("""
        pancakes | vegetable soup | fried rice | tomato pasta | an omelette | banana bread | a salad | tacos | lentil
        curry | roasted potatoes | pizza dough | hummus | apple pie | oatmeal | chicken soup | a smoothie | garlic bread
        | chocolate chip cookies | a sandwich | stir-fried vegetables | guacamole | rice pudding | lemonade | mashed
        potatoes
    """),
    "product": pool("""
        a reusable water bottle | a small bakery | a hiking club | a language app | handmade candles | a dog walking
        service | a bookshop | a yoga class | a folding bicycle | a coffee subscription | a garden tool | a children's
        museum | a desk lamp | noise-canceling headphones | a cooking course | a fitness tracker | an umbrella | a
        flower shop | a car wash | a smart alarm clock
    """),
    "sentence": pool("""
        The meeting was good. | He go to the store yesterday. | I am very happy about the news. | The dog ran across the
        street. | She dont like the cold weather. | We was late because of the traffic. | It is raining a lot today. |
        The food at the restaurant was bad. | My brother and me are going fishing. | The old house stood on the hill. |
        Please send me the report soon. | There is many reasons to learn music. | The teacher explained the lesson. |
        Nobody knows the answer. | Her phone were broken. | The team finished the project early. | I has two sisters. |
        The movie was long and boring. | Birds fly south in the winter. | He is more taller than his father. | The cake
        tastes delicious. | They walked home in the dark.
    """),
    "change": pool("""
        Correct the grammar | Make it more polite | Make it more formal | Rewrite it in the past tense | Rewrite it as a
        question | Make it more descriptive | Make it shorter | Rewrite it in a friendly tone | Use a stronger verb |
        Rewrite it in the future tense | Translate it into Spanish | Translate it into French | Give three other ways to
        say it | Find the verb and the subject
    """),
    "word": pool("""
        happy | brave | curious | gentle | ancient | fragile | generous | stubborn | brilliant | lazy | enormous | calm
        | honest | clever | rapid | hollow | bitter | elegant | loyal | vivid | humble | eager | narrow | steady
    """),
    "length": pool("""
        in one sentence | in two sentences | in three sentences | in one paragraph | in simple words | briefly | with an
        example | for a child | for a beginner | in about 50 words | in about 100 words | as if I were five years old |
        in bullet points
    """),
    "form": pool("""
        a haiku | a short poem | a limerick | a song verse | a slogan | a short speech | a diary entry | a tweet | a
        riddle | a toast | a short essay | a paragraph | a dialogue | a fun fact
    """),
}

ASK = (
    "What is «thing»?",
    "How does «thing» work?",
    "Explain «thing» «length».",
    "Can you explain «thing» «length»?",
    "Why is «thing» important?",
    "What are three interesting facts about «thing»?",
    "Describe «thing» «length».",
    "Who should know about «thing», and why?",
    "What is the history of «thing» «length»?",
    "What would happen without «thing»?",
    "Why do people like «topic»? Answer «length».",
    "What are the advantages and disadvantages of «topic»?",
    "Tell me something surprising about «topic».",
    "What should I see in «place» in «n:2..7» days?",
    "Plan a trip to «place» for «n:2..7» days.",
    "What is «place» known for?",
    "When is the best time to visit «place»?",
    "Which foods should I try in «place»?",
)

ADVISE = (
    "How can I «goal»?",
    "Give me «n:3..7» tips to «goal».",
    "I want to «goal». Where do I start?",
    "Make a simple plan for one week to help me «goal».",
    "What should I avoid when I try to «goal»?",
    "My friend wants to «goal». What should I tell them?",
    "I have tried to «goal» but I keep failing. Any advice?",
    "Why is it hard to «goal»?",
    "Write a short motivational message for someone who wants to «goal».",
    "How do I make «dish»?",
    "Give me a simple recipe for «dish» for «n:2..6» people.",
    "What ingredients do I need for «dish»?",
    "What goes well with «dish»?",
)

COMPOSE = (
    "Write a «tone» email to «recipient» «matter».",
    "Write a «tone» letter to «recipient» «matter».",
    "Help me write a message to «recipient» «matter».",
    "Write a short text to «recipient» «matter».",
    "Write a short story about «hero» who «event».",
    "Tell me a story in which «hero» «event».",
    "Write the first paragraph of a story about «hero» who «event».",
    "Write «form» about «topic».",
    "Write «form» about «hero».",
    "Write «form» about «place».",
    "Write an advertisement for «product».",
    "Write a product description for «product».",
    "Come up with three slogans for «product».",
    "Write a conversation between «hero» and «hero2».",
    "Write «form» about «topic» and «topic2».",
    "Describe «hero» «length».",
    "Write an introduction for an essay about «topic».",
    "Give me a title and a first sentence for a story about «hero».",
)

COMPARE = (
    "What is the difference between «one» and «two»?",
    "Compare «one» and «two» «length».",
    "Which is better, «one» or «two»? Explain briefly.",
    "Give one similarity and one difference between «one» and «two».",
    "Make a short list of pros and cons of «one» and «two».",
)

LISTS = (
    "List «n:3..10» «listed».",
    "Give me «n:3..10» «listed».",
    "Can you suggest some «listed»?",
    "Name «n:3..8» «listed» and say one sentence about each.",
    "Brainstorm «n:4..10» «listed».",
    "Make a table of «n:3..6» «listed».",
    "What are some good «listed»? Answer «length».",
    "Rank «n:3..5» «listed» and explain your choice.",
)

PLAY = (
    "You are «role». Please «request».",
    "Pretend to be «role» and «request».",
    "Act as «role»: «request».",
    "Imagine you are «role» and «request» «length».",
    "Answer as «role» would: «request».",
)

TEXT = (
    "Summarize this text in one sentence:\n\n«passage»",
    "Summarize the following text:\n\n«passage»",
    "Write a title for this text:\n\n«passage»",
    "List the key points of this text:\n\n«passage»",
    "Write two questions about this text:\n\n«passage»",
    "Which names, dates and places appear in this text?\n\n«passage»",
    "Rewrite this text for a child:\n\n«passage»",
    "What is the main idea of this passage?\n\n«passage»",
    "Answer with yes or no and one reason. Is this text about nature?\n\n«passage»",
    "Turn this text into bullet points:\n\n«passage»",
    "Continue this text with two sentences:\n\n«passage»",
    "Is this review positive or negative? Explain briefly.\n\n«review»",
    "Write a polite answer to this review:\n\n«review»",
    "What does this customer like and dislike?\n\n«review»",
    "Rate this review from 1 to 5 stars:\n\n«review»",
    '«change»: "«sentence»"',
    "«change»:\n«sentence»",
    "Here is a sentence: «sentence» «change», please.",
    'Use the word "«word»" in three sentences.',
    'What is a synonym and an antonym of "«word»"?',
    'Explain the word "«word»" «length».',
    'Write a short dialogue that uses the words "«word»" and "«word2»".',
    'What is the difference between "«word»" and "«word2»"?',
    'Write a sentence with "«word»", "«word2»" and "«word3»".',
)

DOMAIN = Domain(
    families=(
        Family(3, ASK),
        Family(3, ADVISE),
        Family(4, COMPOSE),
        Family(1, COMPARE),
        Family(2, LISTS),
        Family(1.5, PLAY),
        Family(4, TEXT),
    ),
    pools=POOLS,
)
