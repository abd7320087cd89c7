"""The HTML page: its contents, and its behaviour in a browser."""

from __future__ import annotations

import json
import re
import shutil
from types import SimpleNamespace

import pytest

from ptxkit.emulator.counters.counters import Counters, LineCounters
from ptxkit.errors import UsageError
from ptxkit.inspect import heat, html_page
from ptxkit.inspect.subject import subjects

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()


def data_of(text):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


@pytest.fixture(scope="module")
def saxpy():
    return html_page.page(subjects("saxpy:vectorized"))


# -- the document ----------------------------------------------------------------------------------------------------------


def test_nothing_is_loaded(saxpy):
    assert "default-src 'none'" in saxpy
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:)|@import|url\(|https?://""", saxpy.split('id="data"')[0])
    assert not re.search(r"fetch\(|XMLHttpRequest|import\(|WebSocket", saxpy)


def test_data_has_lines_links_and_heat(saxpy):
    (kernel,) = data_of(saxpy)["kernels"]
    assert kernel["heat"]["sizes"].startswith("counted in the emulator, n=")
    counts = kernel["heat"]["metrics"]["instructions"]
    (file,) = [f for f in counts if f.endswith("saxpy.cu")]
    assert file in data_of(saxpy)["sources"]
    named = [loc for loc in kernel["ptx_sources"] if loc]
    assert {loc["file"] for loc in named} <= set(data_of(saxpy)["sources"])
    first, last = kernel["ptx_lines"]
    assert len(kernel["ptx_sources"]) == last - first + 1


def test_a_source_that_would_end_the_script_is_harmless(tmp_path):
    nasty = '</script><script>alert("1")</script><!--'
    file = tmp_path / "nasty.cu"
    file.write_text(f'// {nasty}\nextern "C" __global__ void k(float* y) {{ y[threadIdx.x] = 1; }} // {nasty}\n')
    text = html_page.page(subjects(str(file)))
    assert text.count("</script>") == 2
    assert any(nasty in line for s in data_of(text)["sources"].values() for line in s["lines"])


def test_code_alone_has_no_heat(tmp_path):
    file = tmp_path / "k.cu"
    file.write_text('extern "C" __global__ void k(float* y) { y[threadIdx.x] = 1; }\n')
    (kernel,) = data_of(html_page.page(subjects(str(file))))["kernels"]
    assert kernel["heat"] is None
    assert "give one as to `ptxkit run`: --arg NAME=VALUE" in kernel["heat_note"]


def test_ptx_lines_belong_to_the_loc_before_them():
    text = '.file 1 "a.cu"\n.visible .entry k()\n{\n .reg .b32 %r<2>;\n .loc 1 7 3\n mov.b32 %r1, 0;\n ret;\n}\n'
    found = heat.ptx_sources(text)
    assert [loc and loc["line"] for loc in found] == [None, None, None, None, None, 7, 7, None, None]
    assert found[5]["file"] == "a.cu"


def test_counts_of_ptx_lines_add_up_to_those_of_source_lines():
    text = (
        '.file 1 "a.cu"\n.visible .entry k()\n{\n.loc 1 7 3\n mov.b32 %r1, 0;\n mov.b32 %r2, 0;\n.loc 1 9 3\n ret;\n}\n'
    )
    lines = [
        LineCounters("0.ptx", 5, Counters(instructions=5)),
        LineCounters("0.ptx", 6, Counters(instructions=2, flops=2)),
    ]
    lines.append(LineCounters("0.ptx", 8, Counters(instructions=1)))
    assert heat.ptx_counts(lines) == {"instructions": {5: 5, 6: 2, 8: 1}, "flops": {6: 2}}
    assert heat.source_counts(lines, {"0.ptx": text}) == {
        "instructions": {"a.cu": {7: 7, 9: 1}},
        "flops": {"a.cu": {7: 2}},
    }


def test_heat_of_source_lines_is_what_the_emulator_counts_there():
    from ptxkit.runtime.device import device
    from ptxkit.workload import execute

    (subject,) = subjects("saxpy:vectorized")
    found, _ = heat.heat_of(subject)
    small = type(subject.build.workload).make((), {}, small=True)
    case = execute.Case(small, device("emulator"))
    prepared = execute.prepare(case, subject.build.variant, subject.build.target, dict(subject.build.tile))
    counted = case.device.measure(prepared.launch, samples=1).lines
    named = {(line.file, line.line): line.counters.instructions for line in counted}
    for file, lines in found["metrics"]["instructions"].items():
        for line, value in lines.items():
            assert named[file, line] == value
    assert sum(found["ptx"]["instructions"].values()) == sum(named.values())
    instructions = {n for n, text in enumerate(subject.function.ptx.split("\n"), 1) if text.strip().endswith(";")}
    assert set(found["ptx"]["instructions"]) <= instructions


def test_hand_written_ptx_has_heat_and_no_source(tmp_path):
    (tmp_path / "k.ptx").write_text(PTX)
    (tmp_path / "k.py").write_text(DESCRIPTION)
    (kernel,) = data_of(html_page.page(subjects(str(tmp_path / "k.py"))))["kernels"]
    assert kernel["heat"]["ptx"]["instructions"] == {str(n): 64 for n in range(6, 12)}
    assert kernel["heat"]["ptx"]["bytes"] == {"10": 256}


PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 y)
{ .reg .b32 %r<3>; .reg .b64 %d<4>;
    ld.param.u64 %d1, [y];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d2, %r1, 4;
    add.s64 %d3, %d1, %d2;
    st.global.u32 [%d3], %r1;
    ret;
}
"""
DESCRIPTION = """
import numpy as np
from ptxkit import Launch, Work, Workload, variant

class K(Workload):
    source = "k.ptx"
    n: int = 64
    def inputs(self, rng): return {"y": np.zeros(self.n, np.int32)}
    def reference(self, y): return {"y": np.arange(self.n)}
    def work(self): return Work(flops=0, bytes=4 * self.n)
    @variant
    def run(self): return [Launch("k", 1, self.n, ("y",))]
"""


def test_an_unwritable_file_is_one_line(tmp_path):
    from ptxkit.cli.inspect import write_page

    with pytest.raises(UsageError, match="cannot write"):
        write_page(list(subjects("saxpy:scalar")), str(tmp_path / "no" / "p.html"))


# -- in a browser ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if not (CHROMIUM and DRIVER):
        pytest.skip("there is no chromium with its driver")
    options = webdriver.chrome.options.Options()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    driver = webdriver.Chrome(service=webdriver.chrome.service.Service(DRIVER), options=options)
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 1200, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    )
    yield driver
    driver.quit()


@pytest.fixture
def opened(browser, saxpy, tmp_path):
    return open_page(browser, saxpy, tmp_path)


def open_page(browser, text, tmp_path):
    """The actions of a user on the page."""
    file = tmp_path / "page.html"
    file.write_text(text, encoding="utf-8")
    browser.get(file.as_uri())

    def rows(selector):
        return browser.execute_script(
            "return [...document.querySelectorAll(arguments[0])].map(r => +r.dataset.index)", selector
        )

    def press(keys):
        browser.switch_to.active_element.send_keys(keys)

    def click(pane, index):
        browser.execute_script(
            "document.querySelector(`#${arguments[0]} .row[data-index='${arguments[1]}']`).click()", pane, index
        )

    return SimpleNamespace(driver=browser, rows=rows, press=press, click=click, data=data_of(text))


def test_it_starts_without_complaints(opened):
    assert opened.driver.execute_script("return document.documentElement.dataset.ready") == "yes"
    assert opened.driver.get_log("browser") == []
    assert opened.driver.execute_script("return document.body.scrollWidth") <= 1200


def test_a_clicked_instruction_lights_its_source_and_ptx(opened):
    kernel = opened.data["kernels"][0]
    index = next(n for n, i in enumerate(kernel["instructions"]) if i["opcode"] == "FFMA" and n < 40)
    instruction = kernel["instructions"][index]
    opened.click("sass", index)
    assert opened.rows("#sass .row.pin") == [index]
    assert instruction["ptx_line"] - 1 in opened.rows("#ptx .row.lit")
    assert instruction["source"]["line"] - 1 in opened.rows("#source .row.lit")


def test_a_clicked_source_line_lights_all_it_became(opened):
    kernel = opened.data["kernels"][0]
    line = next(i["source"]["line"] for i in kernel["instructions"] if i["opcode"] == "FFMA")
    opened.click("source", line - 1)
    wanted = {n for n, i in enumerate(kernel["instructions"]) if i["source"] and i["source"]["line"] == line}
    shown = set(opened.rows("#sass .row"))
    assert set(opened.rows("#sass .row.lit")) == wanted & shown
    assert wanted & shown


def test_hovering_lights_and_leaving_lets_go(opened):
    row = "document.querySelector('#sass .row[data-index=\"5\"]')"
    fire = f"{row}.dispatchEvent(new MouseEvent('mouseover', {{bubbles: true}}));"
    opened.driver.execute_script(fire)
    assert opened.rows("#sass .row.lit") == [5]
    opened.driver.execute_script("document.querySelector('#sass .view').dispatchEvent(new MouseEvent('mouseleave'))")
    assert opened.rows(".row.lit") == []


def test_heat_can_be_switched(opened):
    def cells():
        return opened.driver.execute_script(
            "return [...document.querySelectorAll('#source .heat')].map(c => c.textContent).filter(Boolean)"
        )

    first = cells()
    assert first
    opened.press("h")
    assert cells() != first
    select = "document.getElementById('heat')"
    opened.driver.execute_script(f"{select}.value = ''; {select}.dispatchEvent(new Event('change'))")
    assert opened.rows("#source .heat") == []


def test_the_ptx_is_hot_and_the_sass_says_where_its_heat_comes_from(opened):
    kernel = opened.data["kernels"][0]
    script = (
        "return [...document.querySelectorAll(arguments[0])].map(c => [+c.parentNode.dataset.index, c.textContent])"
    )
    ptx = dict(map(tuple, opened.driver.execute_script(script, "#ptx .heat")))
    counts = kernel["heat"]["ptx"][next(iter(kernel["heat"]["ptx"]))]
    shown = [n for n in ptx if str(n + 1) in counts]
    assert shown and all(ptx[n] for n in shown)
    assert all(not text for n, text in ptx.items() if str(n + 1) not in counts)
    sass = opened.driver.execute_script(script, "#sass .heat")
    first = {}
    for n, text in sass:
        line = kernel["instructions"][n]["ptx_line"]
        if line and str(line) in counts:
            assert (text == f"ptx {line}") == (line in first)
            first[line] = n
    assert first and "SASS is derived" in opened.driver.find_element("id", "legend").text


def test_a_kernel_without_source_lines_has_no_source_pane(browser, tmp_path):
    (tmp_path / "k.ptx").write_text(PTX)
    opened = open_page(browser, html_page.page(subjects(str(tmp_path / "k.ptx"))), tmp_path)
    assert not opened.driver.find_element("id", "source").is_displayed()
    assert opened.driver.find_element("id", "ptx").is_displayed()


def test_search_marks_and_steps(opened):
    opened.press("/")
    opened.press("ffma")
    total = sum("ffma" in i["text"].lower() for i in opened.data["kernels"][0]["instructions"])
    assert opened.driver.find_element("id", "found").text.endswith(f"+ {total} lines")
    opened.press("\ue007")  # Enter
    first = opened.rows("#sass .row.cursor")
    opened.press("n")
    second = opened.rows("#sass .row.cursor")
    assert first != second
    texts = [opened.data["kernels"][0]["instructions"][n]["text"] for n in (*first, *second)]
    assert all("FFMA" in text for text in texts)


def test_keys_move_pin_and_change_panes(opened):
    opened.press("jj")
    assert opened.rows("#sass .row.cursor") == [2]
    opened.press("k\ue007")
    assert opened.rows("#sass .row.pin") == [1]
    opened.press("\ue00c")  # Escape
    assert opened.rows(".row.pin") == []
    opened.press("\ue004")  # Tab
    opened.press("j")
    assert opened.rows("#source .row.cursor") == [1]


def test_theme_and_scheduling_fields(opened):
    before = opened.driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    opened.press("t")
    assert opened.driver.execute_script("return getComputedStyle(document.body).backgroundColor") != before
    assert opened.driver.find_elements("css selector", "#sass .ctl") == []
    opened.press("c")
    assert opened.driver.find_elements("css selector", "#sass .ctl")[0].text.startswith("------")


def test_a_large_kernel_has_few_rows_in_the_page(browser, tmp_path):
    source = tmp_path / "large.cu"
    lines = "\n".join(f"    x = x * y + {n}.5f; y = fmaf(x, y, {n}.25f);" for n in range(2600))
    source.write_text(
        f'extern "C" __global__ void k(float* p) {{\n    float x = p[0], y = p[1];\n{lines}\n    p[0] = x + y;\n}}\n'
    )
    opened = open_page(browser, html_page.page(subjects(str(source))), tmp_path)
    assert len(opened.data["kernels"][0]["instructions"]) > 5000
    assert len(opened.driver.find_elements("css selector", ".row")) < 400
    opened.press("\ue010")  # End
    assert max(opened.rows("#sass .row")) == len(opened.data["kernels"][0]["instructions"]) - 1
