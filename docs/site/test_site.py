"""The site as its readers have it: from a folder, without a network. `cargo xtask test --suite site` builds it and names it."""

import html.parser
import os
import pathlib
import shutil
import urllib.parse

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium package")
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

SITE = pathlib.Path(os.environ["ESTAFETTE_SITE"]).resolve()
# A busy machine of two cores; a quiet one needs a tenth of it.
SEARCH_SECONDS_MAX = 30


class Page(html.parser.HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loads, self.anchors = set(), set(), {"", "top"}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.add(value)
                if name == "src" or tag == "link":
                    self.loads.add(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


RUST = f"{SITE}/reference/rust/"
CRATES = tuple(f"{folder}/" for folder in SITE.glob("reference/rust/estafette*"))


@pytest.fixture(scope="module")
def pages():
    # Pages with the source of Rust have no links of their own.
    return {str(path): Page(path) for path in SITE.rglob("*.html") if not path.is_relative_to(f"{RUST}src")}


def is_alive(pages, page, link):
    parts = urllib.parse.urlsplit(link)
    target = os.path.normpath(os.path.join(os.path.dirname(page), urllib.parse.unquote(parts.path))) if parts.path else page
    if parts.scheme in ("https", "http"):
        # What is elsewhere is only looked at.
        return bool(parts.netloc)
    if parts.scheme == "data" or page.startswith(RUST) and (parts.scheme or not target.startswith(CRATES) or "." not in parts.path):
        # What rustdoc repeats of traits of other crates has links to the pages of these crates, and scripts behind its buttons.
        return True
    if target not in pages:
        return os.path.isfile(target)
    # Scripts of rustdoc make the anchors of lines.
    return target.startswith(RUST) or urllib.parse.unquote(parts.fragment) in pages[target].anchors


def test_every_link_leads_somewhere(pages):
    links = [(name, link) for name, page in pages.items() for link in page.links]
    assert not [(page, link) for page, link in links if not is_alive(pages, page, link)]
    assert len(pages) > 100 and len(links) > 1000


def test_nothing_is_loaded_from_elsewhere(pages):
    assert not [load for page in pages.values() for load in page.loads if load.startswith(("http", "//"))]


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    # No name is resolved, so no host can be reached.
    for argument in ("--headless=new", "--disable-gpu", "--window-size=1300,1000", "--host-resolver-rules=MAP * ~NOTFOUND"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        # The sandbox refuses to run for root.
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()


@pytest.fixture
def open_page(browser):
    def open_page(name, query=""):
        browser.get((SITE / name).as_uri() + query)

    browser.get_log("browser"), browser.get_log("performance")
    yield open_page
    assert not browser.get_log("browser")
    asked = [entry["message"] for entry in browser.get_log("performance") if '"Network.requestWillBeSent"' in entry["message"]]
    assert asked and not [message for message in asked if '"url":"http' in message]


def wait(browser, look):
    return WebDriverWait(browser, SEARCH_SECONDS_MAX).until(look)


def wait_for(browser, page):
    """Until that page has replaced another one as a whole."""
    wait(browser, lambda browser: browser.execute_script(
        "return location.pathname.endsWith(arguments[0]) && document.readyState === 'complete'", f"/{page}"))


def test_the_first_page_leads_to_the_others(browser, open_page):
    open_page("index.html")
    wait_for(browser, "docs/index.html")
    captions = [element.text.lower() for element in browser.find_elements(By.CSS_SELECTOR, ".sidebar-tree .caption-text")]
    assert captions == ["guide", "recipes", "reference", "how it works", "how it is measured", "project"]
    browser.find_element(By.LINK_TEXT, "the variable protocol").click()
    wait_for(browser, "graph/PROTOCOL.html")


@pytest.mark.parametrize(
    ("word", "page"),
    [
        ("quarantine", "docs/exchange.html"),
        ("DataLoader", "docs/recipes/pytorch.html"),
        ("estafette_tensor_release_after", "docs/site/c.html"),
        ("from_dlpack", "docs/reference/estafette/index.html"),
        ("withdraw", "graph/PROTOCOL.html"),
    ],
)
def test_a_search_finds(browser, open_page, word, page):
    open_page("docs/index.html")
    field = browser.find_element(By.CSS_SELECTOR, "input[name=q]")
    field.send_keys(word, Keys.ENTER)
    wait_for(browser, "search.html")

    def found(browser):
        links = browser.find_elements(By.CSS_SELECTOR, "#search-results li a")
        return [link for link in links if f"/{page}" in link.get_attribute("href")]

    # Further results may move the link while a pointer would be on its way.
    browser.execute_script("arguments[0].click()", wait(browser, found)[0])
    wait_for(browser, page)


def test_pictures_are_drawn(browser, open_page):
    open_page("graph/PROTOCOL.html")
    widths = browser.execute_script("return [...document.querySelectorAll('article img')].map(image => image.naturalWidth)")
    assert len(widths) == 3 and all(widths)


def test_the_reference_of_rust_is_there_and_searches(browser, open_page):
    open_page("reference/rust/estafette/struct.Tensor.html")
    assert "Tensor" in browser.title
    open_page("reference/rust/estafette/index.html", "?search=Pipeline")
    wait(browser, lambda browser: browser.find_elements(By.CSS_SELECTOR, "#search a[href*='struct.Pipeline.html']"))
