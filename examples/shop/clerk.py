"""A clerk who does what a customer asks for: it stands for your agent."""

import os
import time
import urllib.request

SHOP = "http://127.0.0.1:{SHOP_PORT}/cgi-bin/orders/{order}"
MAIL = "http://127.0.0.1:{MAIL_PORT}/cgi-bin/messages/{customer}"


def run(input):
    """Change an order, and write to the customer if told to."""
    wish = input["args"]
    time.sleep(wish.get("thinks", 1))
    answer = post(SHOP.format_map({**os.environ, **wish}), wish["state"])
    if "customer" in wish:
        post(MAIL.format_map({**os.environ, **wish}), f"{wish['order']} is {wish['state']}")
    return answer


def post(url, text):
    with urllib.request.urlopen(urllib.request.Request(url, data=text.encode())) as response:
        return response.read().decode()
