"""Hosts and slots from every source; names that a shell or ssh could misread never pass."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.errors import UsageError
from hvdtrain.launch.hosts.host import Host, parse_host_list
from hvdtrain.launch.hosts.host_files import parse_hostfile, read_hostfile
from hvdtrain.launch.hosts.platform_hosts import (
    hosts_from_lsf,
    hosts_from_pbs,
    hosts_from_sagemaker,
    hosts_from_slurm,
    platform_hosts,
)

SAFE = re.compile(r"[A-Za-z0-9_.:%-]+")
LABEL = st.from_regex(r"[a-z0-9_]([a-z0-9_-]{0,20}[a-z0-9_])?", fullmatch=True)
NAME = st.one_of(
    st.lists(LABEL, min_size=1, max_size=4).map(".".join).filter(lambda name: not re.fullmatch(r"[0-9.]+", name)),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
)
HOSTS = st.lists(st.builds(Host, NAME, st.integers(1, 512)), min_size=1, max_size=8, unique_by=lambda host: host.name)


@given(HOSTS)
def test_a_list_reads_back_as_it_was_written(hosts: list[Host]) -> None:
    assert parse_host_list(",".join(map(str, hosts))) == tuple(hosts)


@given(HOSTS, st.sampled_from(["openmpi", "mpich"]), st.sampled_from(["", "  # rack 7"]))
def test_a_hostfile_reads_back_in_either_form(hosts: list[Host], form: str, ending: str) -> None:
    lines = [f"{host.name} slots={host.slots}" if form == "openmpi" else str(host) for host in hosts]
    text = "# machines\n\n" + "".join(line + ending + "\n" for line in lines)
    assert parse_hostfile(text) == tuple(hosts)


@given(st.text(max_size=40))
def test_whatever_is_accepted_is_safe_in_a_command_line(text: str) -> None:
    try:
        hosts = parse_host_list(text)
    except UsageError:
        return
    for host in hosts:
        assert SAFE.fullmatch(host.name)
        assert not host.name.startswith("-")
        assert host.slots >= 1


@pytest.mark.parametrize(
    "name",
    ["a;touch x", "-oProxyCommand=touch x", "$(id)", "`id`", "a|b", "a&b", "a b", "a\nb", "a'b", 'a"b', "a\\b", "a/b"]
    + ["", ".", "a..b", "a-", "user@a", "999.1.1.1", "1.2.3", "::g", "fe80::1%$(id)", "1.2.3.4%eth0", "é", "a" * 64],
)
def test_what_is_no_host_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is not a host name"):
        Host(name, 1)


@pytest.mark.parametrize("name", ["a", "node-1.rack_2.example.com", "10.0.0.1", "::1", "fe80::1%eth0", "1a", "A" * 63])
def test_what_is_a_host_name_is_taken(name: str) -> None:
    assert Host(name, 1).name == name


@pytest.mark.parametrize("text", ["a:0", "a:-1", "a:x", "a:", "a:1.5", "a:1_0", "a:²", "a:9999999", "[::1]:0"])
def test_slots_that_are_no_whole_number_from_one_up_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="slots of"):
        parse_host_list(text)


@pytest.mark.parametrize("text", ["::1:4", "fe80::1", "a:1:2"])
def test_an_ipv6_address_without_brackets_is_ambiguous(text: str) -> None:
    with pytest.raises(UsageError, match="put the address in brackets"):
        parse_host_list(text)


def test_a_name_alone_is_one_slot_and_repeated_names_add_up() -> None:
    assert parse_host_list("a,b,a") == (Host("a", 2), Host("b", 1))


@pytest.mark.parametrize("text", ["a:4,a:4", "a:4,b:1,A:2", "a,a:2", "a:2,a"])
def test_a_host_with_slots_stands_once(text: str) -> None:
    with pytest.raises(UsageError, match="twice"):
        parse_host_list(text)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("b slot=4", "hosts.txt:3: 'slot=4' is not understood.*did you mean 'slots'"),
        ("b 4", "hosts.txt:3: '4' is not understood"),
        ("b slots=four", "hosts.txt:3: the slots of b are 'four'"),
        ("b slots=0", "hosts.txt:3: the slots of b are '0'"),
        ("b slots=4 max_slots=2", "hosts.txt:3: b has slots=4 and max_slots=2"),
        ("b;touch x slots=1", "hosts.txt:3: 'x' is not understood|hosts.txt:3: 'b;touch'"),
        ("-oProxyCommand=x slots=1", "hosts.txt:3: '-oProxyCommand=x' is not a host name"),
    ],
)
def test_a_typo_in_a_hostfile_is_named_by_its_line(line: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.compile(message, re.DOTALL)):
        parse_hostfile(f"# machines\na slots=4\n{line}\n", "hosts.txt")


def test_open_mpis_spelling_of_the_most_slots_is_taken() -> None:
    assert parse_hostfile("a slots=2 max-slots=4\n[::1] slots=1\n") == (Host("a", 2), Host("::1", 1))


@pytest.mark.parametrize("text", ["", "# nothing\n\n"])
def test_a_hostfile_without_hosts_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="names no host"):
        parse_hostfile(text)


def test_a_hostfile_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("none", "binary", "."):
        with pytest.raises(UsageError, match="cannot be used"):
            read_hostfile(tmp_path / name)


def test_slurm_tells_nodes_and_tasks() -> None:
    env = {"SLURM_JOB_NODELIST": "n[08-10],m", "SLURM_TASKS_PER_NODE": "4(x2),3,1"}
    assert hosts_from_slurm(env) == (Host("n08", 4), Host("n09", 4), Host("n10", 3), Host("m", 1))
    assert hosts_from_slurm({"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS_PER_NODE": "3"})[1] == Host("n2", 3)
    assert hosts_from_slurm({"SLURM_JOB_NODELIST": "n1"}) == (Host("n1", 1),)


def test_slurm_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(UsageError, match="names 2 nodes and SLURM_TASKS_PER_NODE counts 3"):
        hosts_from_slurm({"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "1(x3)"})


def test_pbs_names_a_node_once_for_each_slot(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("n1\nn1\nn2\nn1\n")
    assert hosts_from_pbs({"PBS_NODEFILE": str(nodes)}) == (Host("n1", 3), Host("n2", 1))
    with pytest.raises(UsageError, match="gone cannot be used"):
        hosts_from_pbs({"PBS_NODEFILE": str(tmp_path / "gone")})


def test_lsf_tells_hosts_and_slots() -> None:
    assert hosts_from_lsf({"LSB_MCPU_HOSTS": "a 4 b 2 a 1"}) == (Host("a", 5), Host("b", 2))
    on_summit = {"LSB_MCPU_HOSTS": "batch2 1 h41n10 42 h41n11 42", "CSM_ALLOCATION_ID": "7"}
    assert hosts_from_lsf(on_summit) == (Host("h41n10", 42), Host("h41n11", 42))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a 4 b", "LSB_MCPU_HOSTS is 'a 4 b'"),
        ("a four", "LSB_MCPU_HOSTS: the slots of a are 'four'"),
        ("-oX 1", "-oX' is not a host name"),
    ],
)
def test_a_list_of_lsf_that_is_none_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        hosts_from_lsf({"LSB_MCPU_HOSTS": text})


def test_sagemaker_tells_hosts_and_gpus() -> None:
    names = '["algo-1","algo-2"]'
    assert hosts_from_sagemaker({"SM_HOSTS": names}) == (Host("algo-1", 1), Host("algo-2", 1))
    assert hosts_from_sagemaker({"SM_HOSTS": names, "SM_NUM_GPUS": "8"})[0].slots == 8


@pytest.mark.parametrize("text", ["", "algo-1", "[]", "[1]", '{"a":1}', "[" * 100_000])
def test_a_list_of_sagemaker_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="SM_HOSTS"):
        hosts_from_sagemaker({"SM_HOSTS": text})


def test_the_innermost_platform_decides(tmp_path: Path) -> None:
    hostfile = tmp_path / "hostfile"
    everything = {"SLURM_JOB_NODELIST": "n1", "SM_HOSTS": '["algo-1"]'}
    assert platform_hosts({}, hostfile) is None
    by_sagemaker = platform_hosts({"SM_HOSTS": '["algo-1"]'}, hostfile)
    hostfile.write_text("digits-worker-0.digits.default.svc slots=4\n")
    by_operator = platform_hosts({"SM_HOSTS": '["algo-1"]'}, hostfile)
    by_slurm = platform_hosts(everything, hostfile)
    assert by_sagemaker is not None
    assert by_operator is not None
    assert by_slurm is not None
    assert by_sagemaker[0] == (Host("algo-1", 1),)
    assert by_operator[0] == (Host("digits-worker-0.digits.default.svc", 4),)
    assert by_slurm == ((Host("n1", 1),), "SLURM_JOB_NODELIST=n1")
    assert platform_hosts({"PBS_NODEFILE": str(hostfile)}, tmp_path / "none") == (
        (Host("digits-worker-0.digits.default.svc", 4),),
        f"PBS_NODEFILE={hostfile}",
    )
    assert platform_hosts({"LSB_MCPU_HOSTS": "a 4"}, hostfile) == ((Host("a", 4),), "LSB_MCPU_HOSTS=a 4")
