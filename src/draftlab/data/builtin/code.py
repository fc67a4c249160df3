"""Code prompts of the built-in generator: write, explain, fix, translate, test, SQL, shell, patterns, concepts."""

from __future__ import annotations

from draftlab.data.builtin.snippets import BUGGY, SNIPPETS
from draftlab.data.builtin.templates import Domain, Family, pool

POOLS = {
    "snippet": SNIPPETS,
    "buggy": BUGGY,
    "task": pool("""
        reverses a string | checks whether a string is a palindrome | counts the vowels in a string | returns the n-th
        Fibonacci number | checks whether a number is prime | computes the factorial of a number | returns the largest
        number in a list | removes duplicates from a list and keeps the order | sorts a list with bubble sort | searches
        a sorted list with binary search | counts how often each word appears in a text | merges two sorted lists |
        flattens a nested list | checks whether two strings are anagrams | computes the greatest common divisor of two
        numbers | converts Celsius to Fahrenheit | sums the digits of a number | returns the second largest number in a
        list | finds the longest word in a sentence | capitalizes the first letter of every word | counts the lines of a
        text file | reads a CSV file and returns a list of rows | writes a dictionary to a JSON file | rotates a list by
        k positions | finds the missing number in a list from 1 to n | checks whether parentheses are balanced |
        computes the average of a list of numbers | computes the median of a list of numbers | transposes a matrix |
        multiplies two matrices | returns all even numbers in a list | splits a list into chunks of size n | returns the
        common elements of two lists | generates a random password of a given length | validates an email address |
        converts a Roman numeral to an integer | converts an integer to binary | finds all pairs in a list that add up
        to a target | returns the power set of a list | computes the Hamming distance of two strings | encrypts a text
        with a Caesar cipher | finds the first non-repeating character in a string | counts the words in a sentence |
        removes punctuation from a string | checks whether a year is a leap year | computes the area of a circle |
        returns the days between two dates | sorts a list of dictionaries by a key | groups words by their first letter
        | inverts a dictionary | merges two dictionaries | prints a multiplication table | prints a triangle of stars of
        height n | returns the index of the largest element | moves all zeros to the end of a list | finds the
        intersection of two sets | computes compound interest | counts the set bits of an integer | checks whether a
        list is sorted | computes the running total of a list | finds the longest common prefix of a list of strings |
        compresses a string with run-length encoding | generates the first n rows of Pascal's triangle | returns the
        prime factors of a number | evaluates a postfix expression | clamps a number between two limits | converts
        seconds to hours, minutes and seconds | formats a phone number | returns the most common element of a list |
        checks whether a string contains only digits | swaps the keys and values of a dictionary | removes all None
        values from a list | computes the dot product of two vectors | returns the unique characters of a string |
        truncates a text to n words and adds dots | finds the nearest number to a target in a list
    """),
    "extra": pool("""
        Include a docstring. | Add comments. | Include an example of how to call it. | Use type hints. | Handle an empty
        input. | Do it without built-in helper functions. | Use recursion. | Use a loop, not recursion. | Keep it short.
        | Raise an error for bad input. | Explain how it works in two sentences. | Use a list comprehension where it
        helps. | Return the result, do not print it. | Give its time complexity. | Write the code only, no explanation.
        | Then show two test cases.
    """),
    "language": pool("""
        JavaScript | Java | C | C++ | Go | Rust | Ruby | TypeScript | C# | PHP | Kotlin | Swift
    """),
    "class": pool("""
        a bank account | a stack | a queue | a linked list | a shopping cart | a timer | a student with grades | a
        library book | a deck of cards | a rectangle | a circle | a to-do list | a counter | a binary search tree | a
        temperature converter | an inventory | a phone book | a parking lot | a playlist | a car | a point in 2D space |
        a fraction | a matrix | an employee | a vending machine | a hash map
    """),
    "method": pool("""
        add an item | remove an item | print a summary | return the size | reset the state | compare two objects |
        convert it to a string | save it to a file | check whether it is empty | make a copy | find an item by name |
        update a value
    """),
    "topic": pool("""
        list comprehensions | decorators | generators | lambda functions | exception handling | file handling |
        dictionaries | sets | recursion | inheritance | context managers | string formatting | slicing | virtual
        environments | modules and packages | type hints | unit testing | regular expressions | closures | iterators |
        f-strings | default arguments | the with statement | map and filter | sorting with a key | keyword arguments |
        tuples | while loops | class methods | dataclasses | enumerate and zip | logging | reading command line
        arguments | mutable default arguments | global variables | async functions | pip | debugging | REST APIs | hash
        tables | big O notation | git branches | pointers | linked lists | binary trees | version control | caching |
        pull requests | code reviews | refactoring | continuous integration
    """),
    "reader": pool("""
        a beginner | a student | a programmer who knows Java | someone new to programming | a colleague | a child who
        likes computers | a data analyst
    """),
    "table": pool("""
        employees(id, name, department, salary) | orders(id, customer_id, total, created_at) | products(id, name, price,
        category) | students(id, name, grade, age) | books(id, title, author, year) | flights(id, origin, destination,
        price) | movies(id, title, genre, rating) | customers(id, name, city, email) | sales(id, product, amount,
        sold_at) | visits(id, user_id, page, seconds) | cities(id, name, country, population) | tickets(id, status,
        priority, opened_at) | recipes(id, name, minutes, servings) | payments(id, user_id, amount, method)
    """),
    "query": pool("""
        returns the first «n:3..20» rows sorted by the last column | counts the rows of each group in the third column |
        finds rows whose third column is empty | returns the row with the largest value in the last column | returns the
        average of the numeric columns | deletes duplicate rows | adds a new row | updates one row by id | returns all
        distinct values of the second column | returns rows where the name starts with '«letter»' | creates the table
        with suitable types | counts all rows | returns the groups with more than «n:2..9» rows | adds an index on the
        second column | returns the «n:2..9» most frequent values of the third column | sorts by the second column and
        skips the first «n:5..50/5» rows
    """),
    "letter": pool("""
        A | B | C | D | E | F | G | H | K | L | M | N | P | R | S | T
    """),
    "shell": pool("""
        lists all files larger than «n:5..500/5» MB | counts the lines of all .«ext» files in a folder | finds all
        .«ext» files changed in the last «n:2..30» days | renames all .«ext» files to lower case | deletes empty folders
        | shows the «n:3..20» largest files | replaces a word in all .«ext» files | copies all .«ext» files to a backup
        folder with the date in its name | prints the third column of a CSV file | shows which process uses port
        «n:3000..9000/10» | compresses a folder into a tar.gz archive | counts how often each word appears in a file |
        shows free disk space | downloads a file and checks its checksum | prints lines «n:10..50» to «=n+10» of a file
        | watches a log file for the word error | removes duplicate lines from a .«ext» file | creates «n:3..20»
        numbered folders | kills a process by name | makes a script executable and runs it
    """),
    "ext": pool("""
        txt | py | log | csv | json | md | jpg | html | sh | xml
    """),
    "pattern": pool("""
        an email address | a date like 2024-05-17 | a phone number | a hexadecimal color | a URL | a time like 14:30 |
        an IPv4 address | a word that ends in ing | a floating point number | a ZIP code | a hashtag | text between
        quotes | a file name with extension | two repeated words | a line that starts with #
    """),
    "page": pool("""
        a login form | a navigation bar | a table with «n:3..6» columns | a contact form | an image gallery | a button
        that changes color | a footer with links | a list of recipes | a price card | a quote with its author | a page
        title with a subtitle | a survey with «n:2..5» questions
    """),
    "program": pool("""
        a number guessing game | a simple calculator | a to-do list | rock, paper, scissors | a quiz with «n:3..8»
        questions | a word counter | a dice roller | a unit converter | a tip calculator | a hangman game | a countdown
        timer | a grade book | tic-tac-toe | a coin flip simulator | a password checker | a currency converter | a file
        renamer | a text menu | an alarm clock | a shopping list | a mad libs story | a simple address book | a BMI
        calculator
    """),
}

WRITE = (
    "Write a Python function that «task».",
    "Write a Python function that «task». «extra»",
    "Write a function that «task». «extra» «extra2»",
    "Can you write a Python function that «task»?",
    "I need a function in Python that «task». «extra»",
    "Implement a Python function that «task». «extra»",
    "Show me how to write a function that «task» in Python.",
    "Write a «language» function that «task».",
    "In «language», write a function that «task». «extra»",
    "Write a function that «task» and another one that «task2».",
    "Write a Python one-liner that «task».",
    "Write a short Python program that «task» for input from the user.",
    "Write a Python class for «class».",
    "Write a Python class for «class» with a method to «method».",
    "Create a class for «class» in «language».",
    "Write a Python class for «class» with methods to «method» and to «method2». «extra»",
    "Write a Python program for «program».",
    "Create «program» in Python. «extra»",
    "Write «program» in «language».",
)

READ = (
    "What does this code do?\n\n```python\n«snippet»\n```",
    "Explain this Python code step by step:\n\n```python\n«snippet»\n```",
    "What is the output of this code?\n\n```python\n«snippet»\nprint(f(«a:3..9»))\n```",
    "Add comments to this code:\n\n```python\n«snippet»\n```",
    "Add a docstring to this function:\n\n```python\n«snippet»\n```",
    "Rewrite this function in «language»:\n\n```python\n«snippet»\n```",
    "Give a better name to this function and its variables:\n\n```python\n«snippet»\n```",
    "Write two unit tests for this function:\n\n```python\n«snippet»\n```",
    "How can this code be made faster or simpler?\n\n```python\n«snippet»\n```",
    "What is the time complexity of this function?\n\n```python\n«snippet»\n```",
    "Explain this function to «reader»:\n\n```python\n«snippet»\n```",
    "Add type hints to this function:\n\n```python\n«snippet»\n```",
    "There is a bug in this code. Find and fix it.\n\n```python\n«buggy»\n```",
    "Why does this code not work?\n\n```python\n«buggy»\n```",
    "Fix this function:\n\n```python\n«buggy»\n```\n«extra»",
    "Review this code and suggest an improvement:\n\n```python\n«buggy»\n```",
)

OTHER = (
    "Given the table «table», write an SQL query that «query».",
    "Write an SQL query for the table «table» that «query». Explain it briefly.",
    "I have a table «table». How do I write a query that «query»?",
    "Write a shell command that «shell».",
    "Write a bash script that «shell». «extra»",
    "How do I write a command in Linux that «shell»?",
    "Write a regular expression that matches «pattern», and explain it.",
    "Write a Python function that finds «pattern» in a text with the re module.",
    "Write a «language» snippet that checks whether a string is «pattern».",
    "Write HTML for «page».",
    "Write HTML and CSS for «page».",
)

CONCEPTS = (
    "Explain «topic» to «reader».",
    "Explain «topic» with a short example.",
    "What are common mistakes with «topic»?",
    "When should I use «topic»?",
    "Give three tips about «topic».",
    "Write a short tutorial on «topic» for «reader».",
    "Write a quiz question about «topic» with its answer.",
    "What is the difference between «topic» and «topic2»?",
    "How do «topic» work in «language»?",
    "Write an example that uses «topic» and «topic2».",
    "Summarize what «reader» must know about «topic».",
)

DOMAIN = Domain(
    families=(
        Family(5, WRITE),
        Family(4, READ),
        Family(2.5, OTHER),
        Family(2, CONCEPTS),
    ),
    pools=POOLS,
)
