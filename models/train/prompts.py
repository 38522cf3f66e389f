# SPDX-License-Identifier: Apache-2.0
"""Prompts to which a model writes the texts that its heads are trained on; none is of bench/."""

import itertools
import random

PEOPLE = ["a young sailor", "the old clockmaker", "two sisters", "a tired nurse", "the village teacher",
          "a lost hunter", "the king's cook", "a boy with a kite", "my neighbour", "a retired judge",
          "the widow", "a clever fox", "an honest thief", "the captain", "a shy princess",
          "the miller's son", "a street musician", "an inventor", "the new gardener", "a grey cat"]
PLACES = ["by the river", "in a mountain hut", "at the market", "on a small island", "in the castle",
          "under the bridge", "at the railway station", "in a quiet library", "on the road to town",
          "in the deep forest", "at sea", "in an empty theatre"]
OPENINGS = ["It was late in the autumn when {who} {where}", "Nobody believed that {who} {where}",
            "Long ago, {who} lived {where}, and", "\"Come here,\" said {who}. They stood {where} and",
            "Every evening {who} could be seen {where}.", "When the rain stopped, {who} {where}",
            "Chapter One\n\nI met {who} {where}.", "Far away {where}, {who} found",
            "There was once {who}, who had never been {where}."]
SPEECHES = ["Fellow citizens, the duty of this Government is", "The treaty with Mexico has been",
            "Our commerce and our navigation", "To the Senate and House of Representatives: I submit",
            "The revenue of the past fiscal year", "Peace with all nations and", "We must build",
            "My friends, tonight I want to speak about", "The public lands of the United States",
            "It is the right of every American to", "The report of the Secretary of War shows",
            "Under the Constitution the power to", "In this new century our people"]
SUMS = ["A farmer has 12 cows and buys 7 more.", "Anna reads 20 pages a day for 6 days.",
        "A box holds 24 bottles. How many bottles are in 5 boxes?", "Mark earns $15 an hour.",
        "There are 30 children in a class and 18 of them are girls.",
        "A train goes 60 miles in an hour.", "A shirt costs $20 and a hat costs half as much.",
        "Lena has three times as many stamps as Max.", "A tank holds 80 gallons of water."]
TOPICS = ["how bread is made", "why leaves change their colour", "the moons of Jupiter", "photosynthesis",
          "how a bill becomes a law", "the history of printing", "how to plan a small garden", "inflation",
          "the water cycle", "learning a new language", "how batteries work", "good sleep",
          "what a database index is", "the French Revolution", "recycling at home", "how bees make honey",
          "renting a first flat", "probability", "the human heart", "writing a good letter",
          "how aeroplanes fly", "earthquakes", "public libraries", "saving money", "the immune system",
          "how to learn the guitar", "electric cars", "tides", "the Silk Road", "healthy breakfasts"]
TASKS = ["Explain {topic} in simple words.", "Write a short essay about {topic}.",
         "List five facts about {topic} and explain each.", "What should everybody know about {topic}?",
         "Write a dialogue between two friends about {topic}.", "Give me step by step advice on {topic}.",
         "What are common mistakes people make about {topic}?", "Summarise {topic} in three paragraphs."]
BEGINNINGS = ["An introduction to {topic}\n\n", "The most important thing about {topic} is",
              "Many people ask about {topic}.", "A short guide to {topic}:\n\n1.",
              "Yesterday our teacher told us about {topic}. She said"]


def stories():
    return [opening.format(who=who, where=where)
            for opening, who, where in itertools.product(OPENINGS, PEOPLE, PLACES)]


def prompts(kind, seed=0):
    """[(prompt, is a message of a chat)] without end, in an order that the seed decides.

    `tales`: openings of stories, a third of them under the tags that FractalMoE's documents have,
    beside speeches and sums. `chat`: messages, openings of texts about the same, and of stories.
    """
    chance = random.Random(seed)
    told = stories()
    while True:
        if kind == "tales":
            tagged = chance.choice([f"<|endoftext|><|tales|>{chance.choice(told)}",
                                    f"<|endoftext|><|speeches|>{chance.choice(SPEECHES)}",
                                    f"<|endoftext|><|math|>{chance.choice(SUMS)}"])
            yield chance.choice([chance.choice(told), chance.choice(told), tagged]), False
            continue
        topic = chance.choice(TOPICS)
        yield chance.choice([(chance.choice(TASKS).format(topic=topic), True),
                             (chance.choice(BEGINNINGS).format(topic=topic), False),
                             (f"Write a story. It begins: {chance.choice(told)}", True),
                             (chance.choice(told), False)])
