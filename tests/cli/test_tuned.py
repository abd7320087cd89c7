"""``run --tune`` and ``ptxkit tuned``: candidates, winners, their exchange, and what is refused."""

from __future__ import annotations

import dataclasses
import json

import pytest

from ptxkit import cli
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.sweep import tune
from ptxkit.workload.tuned import store
from ptxkit.workload.tuned.record import Record

GPU = "NVIDIA H200"


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("PTXKIT_CONFIG_DIR", str(tmp_path / "config"))
    return tmp_path / "config" / "tuned"


def ptxkit(capsys, *args):
    with pytest.raises(SystemExit) as stopped:
        cli.main([str(a) for a in args])
    return stopped.value.code, *capsys.readouterr()


def record(**changes):
    given = {"time_us": 2.0, "spread_us": 0.1, "samples": 40, "at": "2026-11-26T10:00:00+00:00", "code": "c", "nvrtc": "13.0"}
    one = Record("saxpy", {"n": 4096}, {}, "scalar", {"THREADS": 256}, target="sm_90a", **given)
    return dataclasses.replace(one, **changes)


def test_without_a_gpu_candidates_are_ranked_and_nothing_is_recorded(capsys, config):
    code, out, _ = ptxkit(capsys, "run", "saxpy", "4096", "--tune", "--candidates", "3", "--device", "emulator")
    assert code == 0 and "Nothing is recorded" in out and "modelled cost" in out
    assert [line.split()[0] for line in out.splitlines()[4:7]] == ["1", "2", "3"]
    assert not config.exists()


def test_json_of_candidates(capsys):
    words = ["run", "saxpy", "4096", "--tune", "--candidates", "2", "--device", "emulator", "--json"]
    code, out, _ = ptxkit(capsys, *words)
    value = json.loads(out)
    assert code == 0 and value["schema"] == "ptxkit.tune/1" and value["unit"] == "modelled cost"
    costs = [c["cost"] for c in value["candidates"]]
    assert costs == sorted(costs) and len(costs) == 2 and value["recorded"] is None
    assert value["winner"]["variant"] == value["candidates"][0]["variant"]
    code, out, _ = ptxkit(capsys, *words, "--dry-run")
    dry = json.loads(out)
    assert code == 0 and dry["winner"] is None and all(c["cost"] is None for c in dry["candidates"])


def test_candidates_are_those_of_named_variants_and_fixed_tiles(capsys):
    words = ["run", "saxpy", "4096", "--tune", "--dry-run", "--json", "--device", "emulator"]
    _, out, _ = ptxkit(capsys, *words, "--variant", "scalar", "--tile", "THREADS=512")
    assert [(c["variant"], c["tile"]) for c in json.loads(out)["candidates"]] == [("scalar", {"THREADS": 512})]


class Timed(EmulatedDevice):
    """The emulator as a device whose candidates take as many microseconds as their place."""

    times = True

    def facts(self):
        return dataclasses.make_dataclass("Facts", ["kernel_driver", "uuid"])("580.95.05", "GPU-1")


def fake_times(self, say):
    return [tune.Tried(o, 9.0 - place, 0.1, 40) for place, o in enumerate(self.candidates)]


def test_the_fastest_is_recorded_with_its_provenance_and_taken(monkeypatch, capsys, config):
    monkeypatch.setattr(tune.Tuning, "_timed", fake_times)
    monkeypatch.setattr("ptxkit.runtime.device.device", lambda kind, *rest: Timed())
    code, out, _ = ptxkit(capsys, "run", "saxpy", "4096", "--tune", "--candidates", "3")
    (kept,) = store.read(store.path_for("ptxkit emulator"))
    assert code == 0 and str(config) in out
    assert (kept.time_us, kept.samples, kept.driver, kept.uuid) == (7.0, 40, "580.95.05", "GPU-1")
    assert kept.code and kept.inputs and kept.nvrtc and kept.target == "sm_90a" and len(kept.others) == 2
    monkeypatch.undo()
    monkeypatch.setenv("PTXKIT_CONFIG_DIR", str(config.parent))
    code, out, _ = ptxkit(capsys, "run", "saxpy", "4096", "--device", "emulator")
    chosen = " ".join([kept.variant, *(f"{k}={v}" for k, v in kept.tile.items())])
    assert out.splitlines()[-1].startswith(f"Choice: {chosen} (tuned by --tune): the fastest of 3 candidates")


def test_no_candidate_is_measured_if_its_winner_could_not_be_kept(monkeypatch, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PTXKIT_CONFIG_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(tune.Tuning, "run", lambda self, say: pytest.fail("measured"))
    monkeypatch.setattr("ptxkit.runtime.device.device", lambda kind, *rest: Timed())
    code, _, err = ptxkit(capsys, "run", "saxpy", "4096", "--tune")
    assert code == 2 and err == f"error: cannot write {tmp_path}/file/tuned: Not a directory\n"


def test_list_show_and_drop(capsys, config):
    code, out, _ = ptxkit(capsys, "tuned", "list")
    assert (code, out) == (0, f"{config} has no winners\n")
    for n in (4096, 8192):
        store.record(GPU, record(sizes={"n": n}))
    code, out, _ = ptxkit(capsys, "tuned", "list")
    name = out.splitlines()[2].split()[0]
    assert code == 0 and "saxpy n=4096" in out and "its machine code has changed since" in out
    code, out, _ = ptxkit(capsys, "tuned", "show", name[:7])
    assert code == 0 and "driver -, NVRTC 13.0" in out and "40 samples" in out
    assert json.loads(ptxkit(capsys, "tuned", "show", name, "--json")[1])["records"][0]["name"] == name
    assert "would delete" in ptxkit(capsys, "tuned", "drop", name, "--dry-run")[1]
    assert len(store.read(store.path_for(GPU))) == 2
    assert ptxkit(capsys, "tuned", "drop", name)[0] == 0
    assert len(store.read(store.path_for(GPU))) == 1
    assert ptxkit(capsys, "tuned", "drop", "--unused", "--json")[0] == 0
    assert store.read(store.path_for(GPU)) == ()
    assert ptxkit(capsys, "tuned", "drop", "--all")[1] == f"nothing to delete in {config}\n"


def test_push_and_pull_print_each_decision(monkeypatch, capsys, tmp_path, config):
    shared = tmp_path / "shared"
    shared.mkdir()
    store.record(GPU, record())
    code, out, _ = ptxkit(capsys, "tuned", "push", shared)
    file = shared / "nvidia-h200.json"
    assert code == 0
    assert out.splitlines() == [
        f"{GPU}: saxpy n=4096: takes scalar THREADS=256 (2 us, 40 samples, 2026-11-26): it is new here",
        f"{file}: takes 1 of 1 winner of {GPU}",
    ]
    store.record(GPU, record(time_us=1.0, samples=20))
    code, out, _ = ptxkit(capsys, "tuned", "pull", shared, "--dry-run", "--json")
    value = json.loads(out)
    (decision,) = value["parts"][0]["decisions"]
    assert value["schema"] == "ptxkit.tuned_merge/1" and value["dry_run"] is True
    assert decision["taken"] and decision["reason"] == "more samples on the same day"
    assert store.read(store.path_for(GPU))[0].samples == 20
    ptxkit(capsys, "tuned", "pull", shared)
    assert store.read(store.path_for(GPU))[0].samples == 40
    assert ptxkit(capsys, "tuned", "push", shared)[1] == f"{file}: takes 0 of 1 winner of {GPU}\n"


@pytest.mark.parametrize(
    "words, code, message",
    [
        (["run", "saxpy", "--candidates", "3"], 2, "--candidates is for --tune; add it"),
        (["run", "saxpy", "--tune", "--candidates", "0"], 2, "0 is not in the range 1<=x<=64"),
        (["run", "saxpy", "--tune", "--candidates", "many"], 2, "'many' is not a whole number"),
        (["run", "saxpy", "--tune", "-5"], 2, "size n"),
        (["run", "saxpy", "4096", "1", "1", "--tune"], 2, "too many are given"),
        (["run", "saxpy", "--tune", "--variant", "scaler"], 2, "did you mean 'scalar'?"),
        (["run", "saxpy", "--tune", "--tile", "THREAD=1"], 2, "has no tile parameter THREAD"),
        (["run", "saxpy", "--tune", "--tile", "THREADS=7"], 2, "offers 256"),
        (["run", "saxpi", "--tune"], 2, "did you mean 'saxpy'?"),
        (["run", "add_*", "--tune"], 2, "--tune takes one kernel"),
        (["run", "--group", "elementwise", "--tune"], 2, "--tune takes one kernel"),
        (["run", "./k.cu", "--tune"], 2, "--tune needs a description"),
        (["run", "matmul_wgmma", "--tune", "--arch", "sm_80"], 3, "no variant of matmul_wgmma can run"),
        (["run", "saxpy", "--tune", "--arch", "sm_1"], 3, "sm_1"),
        (["run", "--tune"], 2, "missing argument 'KERNEL'"),
        (["tuned"], 2, "Usage"),
        (["tuned", "lst"], 2, "did you mean 'list'?"),
        (["tuned", "list", "--gpu", "T4"], 2, "no winners of a GPU 'T4'; it has NVIDIA H200"),
        (["tuned", "list", "--gpu", ""], 2, "no winners of a GPU ''"),
        (["tuned", "list", "saxpi"], 2, "no winner of a kernel 'saxpi' is recorded; did you mean 'saxpy'?"),
        (["tuned", "show"], 2, "missing argument"),
        (["tuned", "show", "zz"], 2, "no winner is called 'zz'"),
        (["tuned", "show", ""], 2, "no winner is called ''"),
        (["tuned", "drop"], 2, "say what to delete"),
        (["tuned", "drop", "zz", "--all"], 2, "not both"),
        (["tuned", "drop", "zz"], 2, "no winner is called 'zz'"),
        (["tuned", "push"], 2, "missing argument"),
        (["tuned", "push", ""], 2, "the name of the directory is empty"),
        (["tuned", "push", "/nowhere/at/all"], 2, "there is no directory /nowhere/at/all; make it first"),
        (["tuned", "push", "/dev/null"], 2, "/dev/null is no directory"),
        (["tuned", "pull", "/nowhere"], 2, "there is no directory /nowhere"),
        (["tuned", "push", "OWN"], 2, "own directory"),
        (["tuned", "pull", "DAMAGED"], 2, "is no file of winners (it is no JSON text); repair it, with those who"),
        (["tuned", "push", "DAMAGED"], 2, "is no file of winners"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_words_are_one_line(capsys, tmp_path, config, words, code, message):
    store.record(GPU, record())
    (tmp_path / "nvidia-h200.json").write_text("{")
    places = {"OWN": str(config), "DAMAGED": str(tmp_path)}
    before = (config / "nvidia-h200.json").read_text()
    found, out, err = ptxkit(capsys, *(places.get(word, word) for word in words))
    assert found == code and message in err + out
    assert "Traceback" not in err
    assert words == ["tuned"] or len(err.strip().splitlines()) == 1
    assert (config / "nvidia-h200.json").read_text() == before
    assert (tmp_path / "nvidia-h200.json").read_text() == "{"


def test_a_damaged_file_of_the_user_is_one_line(capsys, config):
    config.mkdir(parents=True)
    (config / "nvidia-h200.json").write_text('{"schema": "ptxkit.tuned/9"}')
    code, _, err = ptxkit(capsys, "tuned", "list")
    assert code == 2
    assert err.endswith("(ptxkit.tuned/9; this version reads ptxkit.tuned/2); update ptxkit to use it\n")
    (config / "nvidia-h200.json").write_text('{"schema": "ptxkit.tuned/x"}')
    _, _, err = ptxkit(capsys, "tuned", "list")
    assert err.endswith("(its schema is 'ptxkit.tuned/x'; this version reads ptxkit.tuned/2); move or delete it\n")


def test_a_damaged_file_stops_only_what_would_record_in_it(monkeypatch, capsys, caplog):
    monkeypatch.setattr(store, "_said", set())
    path = store.path_for("ptxkit emulator")
    path.parent.mkdir(parents=True)
    damaged = json.dumps({"schema": store.SCHEMA, "gpu": "ptxkit emulator", "records": [record(time_us=10**400).to_json()]})
    path.write_text(damaged)
    for words in (["--tune", "--candidates", "1"], ["--tune", "--dry-run"], []):
        assert ptxkit(capsys, "run", "saxpy", "4096", *words, "--device", "emulator")[0] == 0
    (line,) = caplog.messages
    assert str(path) in line and line.endswith("the winners in it are not used")
    monkeypatch.setattr("ptxkit.runtime.device.device", lambda kind, *rest: Timed())
    monkeypatch.setattr(tune.Tuning, "run", lambda self, say: pytest.fail("measured"))
    code, _, err = ptxkit(capsys, "run", "saxpy", "4096", "--tune")
    assert code == 2 and "record 0 has no valid 'time_us'" in err
    assert path.read_text() == damaged


def test_names_differ_between_gpus_and_a_winner_is_deleted_once(capsys):
    for gpu in (GPU, "NVIDIA H100"):
        store.record(gpu, record())
    found = json.loads(ptxkit(capsys, "tuned", "list", "--json")[1])["records"]
    (name,) = [one["name"] for one in found if one["gpu"] == GPU]
    assert len({one["name"] for one in found}) == 2
    code, out, _ = ptxkit(capsys, "tuned", "drop", name, name[:7])
    assert code == 0 and out == f"deleted {name}: scalar THREADS=256 of saxpy n=4096 on {GPU}\n"
    assert store.gpus() == ["NVIDIA H100", GPU] and len(store.read(store.path_for("NVIDIA H100"))) == 1


def test_winners_of_older_versions_say_so(capsys, config):
    config.mkdir(parents=True)
    entry = {"kernel": "saxpy", "variant": "scalar", "sizes": {"n": 4096}, "options": {}, "tile": {"THREADS": 256}}
    old = {"schema": store.WITHOUT_PROVENANCE, "gpu": GPU, "entries": [entry]}
    (config / "nvidia-h200.json").write_text(json.dumps(old))
    store.record("NVIDIA H100", record(target=""))
    found = json.loads(ptxkit(capsys, "tuned", "list", "--json")[1])["records"]
    assert [one["unused_because"] for one in found] == [
        "it was recorded by an older version, without its target",
        "it was recorded by an older version, without a hash of its machine code",
    ]


