"""Short texts, written for this project, that chat prompts ask to summarise, rewrite, question or judge."""

from __future__ import annotations

PASSAGES = (
    "The old bridge over the river was built in 1887. For more than a century it carried carts, then "
    "cars. Last spring the town closed it for repairs, and since then people have used it only on foot. "
    "Many of them hope that it stays this way.",
    "Honeybees tell each other where to find flowers by dancing. A bee that has found food returns to "
    "the hive and moves in a figure of eight. The angle of the dance shows the direction, and its length "
    "shows the distance.",
    "On Tuesday, the library in Millbrook will open a new reading room. It has forty seats, large "
    "windows and a quiet corner for children. Entry is free, and the room is open until nine in the evening.",
    "Regular walking is one of the simplest ways to stay healthy. It strengthens the heart, improves "
    "sleep and costs nothing. Doctors suggest about thirty minutes a day, which may be split into "
    "shorter walks.",
    "Coffee plants grow best in warm places with a lot of rain. The fruit is picked by hand, dried in "
    "the sun and roasted. Brazil grows more coffee than any other country.",
    "Marta moved to Lisbon in 2019 to work as a nurse. At first she missed her family, but soon she "
    "joined a choir and found new friends. Today she says that the city feels like home.",
    "The deep sea is one of the least explored places on Earth. Some fish there make their own light. "
    "They use it to attract prey, to find a mate or to confuse their enemies.",
    "A small company in Denver has built a lamp that runs on salt water. One cup of water gives light "
    "for eight hours. The makers want to sell it in villages that have no electricity.",
    "Last week a storm damaged the roof of the school gym. Classes went on, but sports were moved "
    "outside. The principal, Mr. Hale, expects the repair to take three weeks.",
    "Bread is one of the oldest foods that people prepare. Early breads were flat and baked on hot "
    "stones. In Egypt, around 3,000 years ago, bakers learned to use yeast, which made the loaves light "
    "and soft.",
    "The city of Arden plans to plant five thousand trees in the next two years. Trees cool the streets "
    "in the summer and clean the air. Residents can ask for a tree in front of their house.",
    "Penguins are birds that cannot fly, but they are excellent swimmers. Their wings work like "
    "flippers. Emperor penguins can dive deeper than 500 meters and hold their breath for more than "
    "twenty minutes.",
    "When Tom was nine, his grandfather gave him a box of tools. He began to repair radios, then "
    "bicycles. Today he runs a small workshop where people can bring things that others would throw away.",
    "Chess is played by millions of people around the world. The game has simple rules but countless "
    "possibilities. Many schools use it to teach children to plan ahead and to lose with grace.",
    "The train from Hamburg to Berlin takes less than two hours. It leaves every hour and has a small "
    "restaurant. Tickets are cheaper for those who book early.",
    "Mountains influence the weather. When moist air rises along a slope, it cools, and rain falls on "
    "that side. The other side often stays dry. Deserts can form behind high mountains for this reason.",
    "Our office will be closed from December 24 to January 2. Urgent questions can be sent to "
    "support@example.com. Orders that arrive before December 20 will be shipped this year.",
    "In the nineteenth century, letters were the main way to stay in touch over long distances. A letter "
    "across the ocean could take weeks. The telegraph changed this, since it sent messages within minutes.",
    "Sleep helps the brain to store what it has learned during the day. People who sleep too little find "
    "it harder to concentrate. Most adults need between seven and nine hours a night.",
    "The museum shows two hundred paintings by local artists. The oldest is from 1702 and shows the "
    "harbor. On Sundays, students guide visitors through the rooms and tell the stories behind the pictures.",
    "Plastic bottles can be turned into clothes. They are cleaned, cut into flakes, melted and spun into "
    "thread. About twelve bottles are needed for one shirt.",
    "Ana and Luis opened a food truck in May. They sell three kinds of soup and fresh bread. On their "
    "first day they had nine customers; now they serve a hundred people at lunch.",
    "The wolf returned to the valley after eighty years. Farmers worry about their sheep, while "
    "biologists welcome it. The region now pays for fences and for dogs that guard the herds.",
    "A solar eclipse happens when the moon moves between the Earth and the sun. For a few minutes the "
    "day turns dark. It is dangerous to look at the sun without special glasses.",
    "Many cities now lend bicycles. A rider opens the lock with a phone and leaves the bicycle at any "
    "station. Short trips cost little, and the streets become quieter.",
    "The recipe is simple: boil the potatoes, mash them with butter and milk, and add salt. Some cooks "
    "add garlic or nutmeg. The dish tastes best when it is served hot.",
)

REVIEWS = (
    "The headphones sound great, but after two weeks the left side stopped working. The shop replaced "
    "them without any questions.",
    "Terrible service. We waited an hour for a cold soup, and the waiter was rude.",
    "I love this backpack! It is light, strong and has a pocket for everything. I only wish it came in green.",
    "The hotel was clean and close to the station. The walls are thin, though, and we heard every word from next door.",
    "The book starts slowly, but the last hundred pages are wonderful. I could not put it down.",
    "It broke on the first day. The package was damaged too. I want my money back.",
    "Friendly staff, fair prices and the best bread in town. We will come again.",
    "The app is useful, but it crashes whenever I open the calendar. Please fix this.",
    "My children enjoyed the show. It was a little long, and the seats were hard.",
    "The lamp looks nice and gives warm light. It took me ten minutes to set up.",
    "The course was well organized. The teacher explained everything clearly and answered all of our questions.",
    "The shoes are pretty but far too small. Order one size larger.",
    "I expected more from this camera. The pictures are fine in daylight but blurry in the evening.",
    "The delivery was two days late, and nobody answered my email. The flowers were beautiful, at least.",
    "A quiet park with old trees and a small lake. Bring your own food, since the kiosk is expensive.",
    "This vacuum cleaner is loud, but it works better than my old one.",
    "The movie was full of surprises, and the music was perfect. One of the best of the year.",
    "The room smelled of smoke, and the shower did not work. We left after one night.",
)
