"""Rank tables in both forms; whatever contradicts itself is refused with its reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.errors import UsageError
from hvdtrain.launch.hosts.host import Host
from hvdtrain.launch.hosts.host_files import parse_rank_table

DEVICES = st.lists(st.integers(0, 15), min_size=1, max_size=8, unique=True).map(tuple)
TABLES = st.lists(DEVICES, min_size=1, max_size=4).map(
    lambda all_devices: [Host(f"10.0.0.{i + 1}", len(devices), devices) for i, devices in enumerate(all_devices)]
)


def as_servers(hosts: list[Host]) -> dict[str, Any]:
    rank = iter(range(10_000))
    servers = [
        {
            "server_id": host.name,
            "device": [
                {"device_id": str(d), "device_ip": "192.168.0.1", "rank_id": str(next(rank))} for d in host.devices
            ],
            "host_nic_ip": "reserve",
        }
        for host in hosts
    ]
    return {"version": "1.0", "server_count": str(len(hosts)), "server_list": servers, "status": "completed"}


def as_groups(hosts: list[Host]) -> dict[str, Any]:
    seats = [(host.name, device) for host in hosts for device in host.devices]
    instances = [
        {"devices": [{"device_id": str(d), "device_ip": "192.168.0.1"}], "rank_id": str(r), "server_id": name}
        for r, (name, d) in enumerate(seats)
    ]
    group = {"device_num": str(len(seats)), "instance_count": str(len(seats)), "instance_list": instances}
    return {"group_count": "1", "group_list": [group], "status": "completed"}


@given(TABLES, st.randoms())
def test_both_forms_give_the_same_hosts_in_any_order(hosts: list[Host], random: Any) -> None:
    servers, groups = as_servers(hosts), as_groups(hosts)
    random.shuffle(servers["server_list"])
    random.shuffle(groups["group_list"][0]["instance_list"])
    assert parse_rank_table(json.dumps(servers)) == tuple(hosts)
    assert parse_rank_table(json.dumps(groups)) == tuple(hosts)


def test_a_group_has_the_devices_that_it_lists() -> None:
    table = as_groups([Host("a", 1, (0,))])
    table["group_list"][0]["instance_list"][0]["device_id"] = "9"
    assert parse_rank_table(json.dumps(table)) == (Host("a", 1, (0,)),)


def two_servers() -> dict[str, Any]:
    return as_servers([Host("a", 2, (0, 1)), Host("b", 2, (0, 1))])


def device(table: dict[str, Any], server: int, number: int) -> dict[str, Any]:
    found: dict[str, Any] = table["server_list"][server]["device"][number]
    return found


def test_what_contradicts_itself_is_refused() -> None:
    changes = {
        "rank 1 is there twice": lambda t: device(t, 1, 0).update(rank_id="1"),
        "rank 3 is missing": lambda t: device(t, 1, 1).update(rank_id="9"),
        "device 0 of b is there twice": lambda t: device(t, 1, 1).update(device_id="0"),
        "rank_id is '-1', not a number": lambda t: device(t, 0, 0).update(rank_id="-1"),
        "rank_id is None, not a number": lambda t: t["server_list"][0].update(device=[{}], rank_id="0", device_id="0"),
        "device_id is None, not a number": lambda t: device(t, 0, 0).pop("device_id"),
        "server_count is 3, but there are 2": lambda t: t.update(server_count="3"),
        "device is not a list of objects": lambda t: t["server_list"][0].update(device=[]),
        "server_list is not a list of objects": lambda t: t.update(server_list="a"),
        "neither server_list nor group_list": lambda t: t.pop("server_list"),
        "server_id is None": lambda t: t["server_list"][0].pop("server_id"),
        "'a;touch x' is not a host name": lambda t: t["server_list"][0].update(server_id="a;touch x"),
        "has the status 'initializing'": lambda t: t.update(status="initializing"),
    }
    for message, change in changes.items():
        table = two_servers()
        change(table)
        with pytest.raises(UsageError, match=message):
            parse_rank_table(json.dumps(table))


def test_ranks_that_jump_between_servers_are_refused() -> None:
    table = two_servers()
    device(table, 0, 1)["rank_id"], device(table, 1, 0)["rank_id"] = "2", "1"
    with pytest.raises(UsageError, match="rank 2 is on a, rank 1 is not"):
        parse_rank_table(json.dumps(table))


def test_an_instance_has_one_device() -> None:
    table = as_groups([Host("a", 1, (0,))])
    table["group_list"][0]["instance_list"][0]["devices"] *= 2
    with pytest.raises(UsageError, match="rank 0 has 2 devices"):
        parse_rank_table(json.dumps(table))


@pytest.mark.parametrize("text", ["", "{", "[]", '"a"', "[" * 100_000])
def test_what_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="table.json is not a rank table"):
        parse_rank_table(text, "table.json")
