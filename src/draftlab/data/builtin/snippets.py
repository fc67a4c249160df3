"""Short Python functions for the code prompts: sound ones to explain, and ones with a bug to find."""

from __future__ import annotations

SNIPPETS = (
    "def f(n):\n    total = 0\n    for i in range(n):\n        total += i * i\n    return total",
    "def f(n):\n    if n <= 1:\n        return n\n    return f(n - 1) + f(n - 2)",
    "def f(n):\n    return [i for i in range(1, n + 1) if n % i == 0]",
    "def f(n):\n    result = 1\n    while n > 1:\n        result *= n\n        n -= 1\n    return result",
    "def f(n):\n    text = str(n)\n    return text == text[::-1]",
    "def f(n):\n    digits = []\n    while n > 0:\n        digits.append(n % 2)\n        n //= 2\n    return "
    "digits[::-1]",
    "def f(n):\n    return sum(int(c) for c in str(n))",
    "def f(n):\n    row = [1]\n    for _ in range(n):\n        row = [1] + [a + b for a, b in zip(row, "
    "row[1:])] + [1]\n    return row",
    "def f(n):\n    seen = {}\n    for word in ['a', 'b', 'a'] * n:\n        seen[word] = seen.get(word, 0) "
    "+ 1\n    return seen",
    "def f(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a",
    "def f(n):\n    return ''.join(chr(97 + i) for i in range(n))",
    "def f(n):\n    primes = []\n    for k in range(2, n + 1):\n        if all(k % p for p in primes):\n     "
    "       primes.append(k)\n    return primes",
    "def f(n):\n    steps = 0\n    while n != 1:\n        n = n // 2 if n % 2 == 0 else 3 * n + 1\n        "
    "steps += 1\n    return steps",
    "def f(n):\n    return {i: i ** 2 for i in range(n)}",
    "def f(n):\n    items = list(range(n))\n    items.reverse()\n    return items",
    "def f(n):\n    try:\n        return 10 / (n - 5)\n    except ZeroDivisionError:\n        return None",
    "def f(n):\n    return [[i * j for j in range(n)] for i in range(n)]",
    "def f(n):\n    odd = filter(lambda x: x % 2, range(n))\n    return sum(odd)",
    "def f(n):\n    low, high = 0, n\n    while low * low < n:\n        low += 1\n    return low",
    "def f(n):\n    for i in range(n):\n        print('*' * (i + 1))\n    return n",
    "def f(n):\n    words = ['zero', 'one', 'two', 'three']\n    return words[n % len(words)]",
    "def f(n):\n    stack = []\n    for i in range(n):\n        stack.append(i)\n    return stack.pop()",
    "def f(n):\n    return max((i * 7) % 10 for i in range(n))",
    "def f(n):\n    queue = [1]\n    while len(queue) < n:\n        queue.append(queue[-1] * 2)\n    return queue",
    "def f(n):\n    name = 'world'\n    return f'Hello, {name}! ' * n",
    "def f(n):\n    yes = {2, 3, 5, 7}\n    return n in yes",
    "def f(n):\n    count = 0\n    for i in range(n):\n        for j in range(i):\n            count += 1\n   "
    " return count",
    "def f(n):\n    return sorted(range(n), key=lambda x: -x)",
    "def f(n):\n    if n == 0:\n        return 0\n    return n + f(n - 1)",
    "def f(n):\n    grade = 'A' if n > 8 else 'B' if n > 5 else 'C'\n    return grade",
    "def f(n):\n    pairs = [(i, n - i) for i in range(n // 2 + 1)]\n    return pairs",
    "def f(n):\n    total = 0\n    for i, value in enumerate([3, 1, 4, 1, 5]):\n        if i < n:\n          "
    "  total += value\n    return total",
    "def f(n):\n    with open('out.txt', 'w') as file:\n        for i in range(n):\n            "
    "file.write(str(i))\n    return n",
    "def f(n):\n    import random\n    random.seed(n)\n    return random.randint(1, 6)",
    "def f(n):\n    matrix = [[0] * n for _ in range(n)]\n    for i in range(n):\n        matrix[i][i] = 1\n "
    "   return matrix",
    "def f(n):\n    return 'Fizz' * (n % 3 == 0) + 'Buzz' * (n % 5 == 0) or n",
)

BUGGY = (
    "def average(numbers):\n    return sum(numbers) / len(number)",
    "def is_even(n):\n    if n % 2 = 0:\n        return True\n    return False",
    "def factorial(n):\n    return n * factorial(n - 1)",
    "def add_item(item, items=[]):\n    items.append(item)\n    return items",
    "def largest(numbers):\n    best = 0\n    for n in numbers:\n        if n > best:\n            best = n\n "
    "   return best",
    "def count_down(n):\n    while n > 0:\n        print(n)",
    "def greet(name)\n    print('Hello ' + name)",
    "def reverse(text):\n    result = ''\n    for c in text:\n        result = result + c\n    return result",
    "def last(items):\n    return items[len(items)]",
    "def remove_small(numbers):\n    for n in numbers:\n        if n < 10:\n            numbers.remove(n)\n  "
    "  return numbers",
    "def total(prices):\n    sum = 0\n    for price in prices:\n        sum =+ price\n    return sum",
    "age = input('Age? ')\nif age > 18:\n    print('adult')",
    "def square(n):\n    n * n\n\nprint(square(4))",
    "def contains(items, x):\n    for item in items:\n        if item == x:\n            return True\n       "
    " else:\n            return False",
    "numbers = [1, 2, 3]\nprint('Sum: ' + sum(numbers))",
    "def get(data, key):\n    return data[key]\n\nprint(get({'a': 1}, 'b'))",
    "def fib(n):\n    a, b = 0, 1\n    for i in range(n):\n        a = b\n        b = a + b\n    return a",
    "def is_prime(n):\n    for i in range(1, n):\n        if n % i == 0:\n            return False\n    return True",
    "def copy_list(items):\n    new = items\n    new.append(0)\n    return new",
    "for i in range(5):\nprint(i)",
    "def divide(a, b):\n    try:\n        return a / b\n    except ValueError:\n        return "
    "None\n\nprint(divide(1, 0))",
    "def words(text):\n    return len(text.split(''))",
    "def celsius(f):\n    return f - 32 * 5 / 9",
    "def first_word(text):\n    return text.split()[1]",
    "class Dog:\n    def __init__(self, name):\n        name = name\n\nprint(Dog('Rex').name)",
    "import maths\nprint(maths.sqrt(16))",
    "def binary_search(items, x):\n    low, high = 0, len(items) - 1\n    while low < high:\n        mid = "
    "(low + high) // 2\n        if items[mid] < x:\n            low = mid\n        else:\n            high = "
    "mid\n    return low",
    "def vowels(text):\n    count = 0\n    for c in text:\n        if c == 'a' or 'e' or 'i' or 'o' or "
    "'u':\n            count += 1\n    return count",
)
