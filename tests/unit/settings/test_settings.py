"""The environment becomes settings, or one error that names everything wrong with it."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys

import pytest
from pydantic import SecretStr

from scheduler.settings import Settings, SettingsError, load
from scheduler.settings_values import allowed_values, format_duration, masked, parse_duration, shown, variable_of


@pytest.mark.parametrize(
    ("variable", "field", "expected"),
    [
        ("PERSYS_GRPC_ADDR", "grpc_addr", "0.0.0.0"),  # noqa: S104 - the reference system's default
        ("GRPC_PORT", "grpc_port", 8085),
        ("METRICS_PORT", "metrics_port", 8084),
        ("ETCD_ENDPOINTS", "etcd_endpoints", ("localhost:2379",)),
        ("SCHEDULER_SHARD_KEY", "shard_key", "genesis"),
        ("REDIS_ADDR", "redis_addr", ""),
        ("REDIS_DB", "redis_db", 0),
        ("REDIS_EVENT_TTL", "redis_event_ttl_seconds", 86400),
        ("REDIS_EVENT_MAX_ENTRIES", "redis_event_max_entries", 1000),
        ("SCHEDULER_AGENT_RPC_TIMEOUT", "agent_rpc_timeout_seconds", 10),
        ("SCHEDULER_RECONCILE_INTERVAL", "reconcile_interval_seconds", 5),
        ("SCHEDULER_RECONCILE_CONCURRENCY", "reconcile_concurrency", 64),
        ("SCHEDULER_HA_MODE", "ha_mode", "failover"),
        ("SCHEDULER_SHARD_COUNT", "shard_count", 1),
        ("SCHEDULER_SHARD_INDEX", "shard_index", 0),
        ("SCHEDULER_DRIFT_DETECT_INTERVAL", "drift_interval_seconds", 300),
        ("SCHEDULER_REAPPLY_GUARD", "reapply_guard_seconds", 45),
        ("LOG_LEVEL", "log_level", "info"),
        ("LOG_FORMAT", "log_format", "json"),
        # Where design and reference system differ:
        ("SCHEDULER_NODE_UNAVAILABLE_GRACE", "node_grace_seconds", 60),
        ("FLEETBEAT_HEARTBEAT_INTERVAL", "heartbeat_interval_seconds", 10),
        ("FLEETBEAT_NODE_LEASE", "node_lease_seconds", 30),
        ("SCHEDULER_SHARD_HASH", "shard_hash", "jump"),
    ],
)
def test_defaults_are_the_reference_systems_or_the_designs(variable: str, field: str, expected: object) -> None:
    """Name and default of each variable are as in section 6 of the reference, or as the design says."""
    assert variable_of(Settings.model_fields[field]) == variable
    assert getattr(load(), field) == expected


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15", 15), ("15s", 15), (" 15s ", 15), ("2m", 120), ("1m30s", 90), ("1500ms", 1.5), ("1.5s", 1.5), ("0.5m", 30)],
)
def test_F93_flexible_durations(monkeypatch: pytest.MonkeyPatch, text: str, seconds: float) -> None:
    """F93: "15" is 15 s and so is "15s"."""
    monkeypatch.setenv("SCHEDULER_RECONCILE_INTERVAL", text)
    assert load().reconcile_interval_seconds == seconds


@pytest.mark.parametrize("text", ["0", "-5s", "5 s", "5x", "s", "1e3", "٣s", "5s5", "soon", "9" * 400, "nan", "1d"])
def test_F93_a_bad_duration_is_an_error_that_names_variable_value_and_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """F93: nothing bad silently becomes the default, and no interval can be zero or less."""
    monkeypatch.setenv("SCHEDULER_RECONCILE_INTERVAL", text)
    with pytest.raises(SettingsError) as caught:
        load()
    assert str(caught.value).startswith(f"SCHEDULER_RECONCILE_INTERVAL={text[:80]}: ")
    assert str(caught.value).endswith("allowed: a duration from 200ms to 1h")


@pytest.mark.parametrize("seconds", [0.25, 1, 59.5, 60, 90, 3600, 3661, 86400])
def test_durations_are_shown_as_they_are_read(seconds: float) -> None:
    """What is shown can be put into the environment again."""
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("GRPC_PORT", "0", "allowed: a whole number from 1 to 65535"),
        ("GRPC_PORT", "70000", "allowed: a whole number from 1 to 65535"),
        ("METRICS_PORT", "http", "is not a whole number"),
        ("METRICS_PORT", "80.5", "is not a whole number"),
        ("PERSYS_GRPC_ADDR", "a b", "is not a host name or address"),
        ("ETCD_ENDPOINTS", "etcd", "'etcd' is not host:port"),
        ("ETCD_ENDPOINTS", " , ", "at least one"),
        ("ETCD_ENDPOINTS", "https://etcd:2379", "FLEETBEAT_ETCD_CA"),
        ("ETCD_ENDPOINTS", "::1:2379", "brackets"),
        ("FLEETBEAT_ETCD_PREFIX", "no-slash", "allowed: /name"),
        ("FLEETBEAT_ETCD_PREFIX", "/a/", "allowed: /name"),
        ("REDIS_ADDR", "redis:port", "is not host:port"),
        ("REDIS_DB", "-1", "allowed: a whole number from 0 to 15"),
        ("REDIS_EVENT_MAX_ENTRIES", "0", "allowed: a whole number from 1"),
        ("SCHEDULER_SHARD_COUNT", "0", "allowed: a whole number from 1 to 1024"),
        ("SCHEDULER_SHARD_COUNT", "many", "is not a whole number"),
        ("SCHEDULER_SHARD_HASH", "md5", "allowed: jump or crc32"),
        ("SCHEDULER_HA_MODE", "both", "allowed: failover or active-active"),
        ("SCHEDULER_SHARD_KEY", "a/b", "allowed: letters, digits"),
        ("SCHEDULER_RECONCILE_CONCURRENCY", "0", "allowed: a whole number from 1"),
        ("FLEETBEAT_BRAKE_SHARE", "0", "allowed: a number above 0 to 1"),
        ("FLEETBEAT_BRAKE_SHARE", "third", "is not a number"),
        ("FLEETBEAT_OVERCOMMIT_CPU", "nan", "is not a number"),
        ("SCHEDULER_AGENT_TLS_ENABLED", "maybe", "allowed: true, false, 1, 0, yes, no or auto"),
        ("FLEETBEAT_TLS", "yes", "allowed: auto or on or off"),
        ("FLEETBEAT_OPERATOR_NAMES", "op,a*b", "'a*b' is not a name"),
        ("FLEETBEAT_NODE_NAMES", "{node_id}", "allowed: a name with {node_id} in it once, and something else"),
        ("LOG_LEVEL", "loud", "allowed: debug, info, warning or error"),
        ("LOG_FORMAT", "xml", "allowed: json or text"),
        ("FLEETBEAT_BROKER_URL", "http://broker", "allowed: redis://"),
    ],
)
def test_F63_a_wrong_value_refuses_to_start(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    """The message names the variable, the value and what is allowed."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as caught:
        load()
    is_secret = variable == "FLEETBEAT_BROKER_URL"
    assert str(caught.value).startswith(f"{variable}={'***' if is_secret else value.strip()}: ")
    assert said in str(caught.value)


def test_everything_wrong_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One start tells all mistakes, typing errors in names included."""
    monkeypatch.setenv("GRPC_PORT", "0")
    monkeypatch.setenv("REDIS_DB", "x")
    monkeypatch.setenv("FLEETBEAT_NODE_LEESE", "5s")
    with pytest.raises(SettingsError) as caught:
        load()
    lines = str(caught.value).splitlines()
    assert [line.split("=")[0].split(":")[0] for line in lines] == ["GRPC_PORT", "REDIS_DB", "FLEETBEAT_NODE_LEESE"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"FLEETBEAT_NODE_LEASE": "15s"}, "FLEETBEAT_NODE_LEASE=15s must be at least twice"),
        ({"SCHEDULER_NODE_UNAVAILABLE_GRACE": "5"}, "SCHEDULER_NODE_UNAVAILABLE_GRACE=5s must be at least"),
        ({"GRPC_PORT": "9000", "METRICS_PORT": "9000"}, "GRPC_PORT=9000 and METRICS_PORT=9000 must differ"),
        ({"SCHEDULER_RECONCILE_CONCURRENCY": "2"}, "FLEETBEAT_CALLS_PER_NODE=4 must be at most"),
        (
            {"SCHEDULER_RECONCILE_INTERVAL": "0.2", "FLEETBEAT_LEADER_LEASE": "20"},
            "FLEETBEAT_LEADER_LEASE=20s must be at most 60 times SCHEDULER_RECONCILE_INTERVAL=200ms",
        ),
        ({"SCHEDULER_SHARD_INDEX": "1"}, "SCHEDULER_SHARD_INDEX=1 must be below SCHEDULER_SHARD_COUNT=1"),
        ({"FLEETBEAT_ETCD_CERT": "/c"}, "FLEETBEAT_ETCD_CERT and FLEETBEAT_ETCD_KEY must be given together"),
        ({"FLEETBEAT_ETCD_CERT": "/c", "FLEETBEAT_ETCD_KEY": "/k"}, "needs FLEETBEAT_ETCD_CA"),
        ({"PERSYS_VAULT_ENABLED": "true"}, "needs PERSYS_VAULT_TOKEN"),
        (
            {
                "PERSYS_VAULT_ENABLED": "true",
                "PERSYS_VAULT_AUTH_METHOD": "approle",
                "PERSYS_VAULT_APPROLE_ROLE_ID": "r",
            },
            "needs PERSYS_VAULT_APPROLE_ROLE_ID and PERSYS_VAULT_APPROLE_SECRET_ID",
        ),
        (
            {"PERSYS_VAULT_ENABLED": "true", "PERSYS_VAULT_TOKEN": "t", "PERSYS_TLS_KEY": "/k"},
            "must be three files in one folder",
        ),
        ({"FLEETBEAT_ETCD_USER": "root"}, "FLEETBEAT_ETCD_USER and FLEETBEAT_ETCD_PASSWORD must be given together"),
        (
            {"FLEETBEAT_AUTHORIZATION": "names", "FLEETBEAT_OPERATOR_NAMES": "op"},
            "FLEETBEAT_AUTHORIZATION=names needs TLS",
        ),
        (
            {"FLEETBEAT_AUTHORIZATION": "names", "FLEETBEAT_TLS": "on"},
            "FLEETBEAT_AUTHORIZATION=names needs FLEETBEAT_OPERATOR_NAMES",
        ),
    ],
)
def test_F63_values_that_do_not_go_together_refuse_to_start(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], said: str
) -> None:
    """Settings are checked against each other."""
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=said):
        load()


def test_the_settings_of_the_embedded_cluster_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 s, 3 s and 5 s, as the design has them, pass all checks."""
    for name, value in (
        ("FLEETBEAT_HEARTBEAT_INTERVAL", "1s"),
        ("FLEETBEAT_NODE_LEASE", "3s"),
        ("SCHEDULER_NODE_UNAVAILABLE_GRACE", "5s"),
        ("SCHEDULER_RECONCILE_INTERVAL", "1s"),
    ):
        monkeypatch.setenv(name, value)
    assert load().node_grace_seconds == 5


@pytest.mark.parametrize(("text", "value"), [("false", False), ("FALSE", False), ("0", False), ("No", False)])
def test_booleans_are_read_in_any_case(monkeypatch: pytest.MonkeyPatch, text: str, value: bool) -> None:
    """true, 1, yes, false, 0 and no; everything else is an error (tested above)."""
    monkeypatch.setenv("SCHEDULER_AGENT_TLS_ENABLED", text)
    assert load().agent_tls_enabled is value


@pytest.mark.parametrize(
    ("given", "front", "agents"),
    [
        ({}, False, False),
        ({"PERSYS_TLS_CERT": "/c"}, True, True),
        ({"PERSYS_TLS_CERT": "/c", "FLEETBEAT_TLS": "off"}, False, False),
        ({"FLEETBEAT_TLS": "on"}, True, True),
        ({"FLEETBEAT_TLS": "on", "SCHEDULER_AGENT_TLS_ENABLED": "false"}, True, False),
        ({"SCHEDULER_AGENT_TLS_ENABLED": "true"}, False, True),
    ],
)
def test_F77_tls_is_on_where_a_file_of_it_is_named(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], front: bool, agents: bool
) -> None:
    """Whoever has named certificates serves no plaintext unless told to; agents follow the front the same way."""
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    settings = load()
    assert (settings.tls_enabled, settings.agent_tls_enabled) == (front, agents)
    for_worker = settings.model_copy(update={"metrics_port": 9999})
    assert pickle.loads(pickle.dumps(for_worker)).tls_enabled is front  # noqa: S301 - as a spawned process gets it


@pytest.mark.parametrize(("text", "level"), [("WARN", "warning"), ("trace", "debug"), ("Fatal", "error")])
def test_the_reference_systems_log_levels_are_taken(monkeypatch: pytest.MonkeyPatch, text: str, level: str) -> None:
    """Its names for levels mean the nearest of ours."""
    monkeypatch.setenv("LOG_LEVEL", text)
    assert load().log_level == level


def test_etcd_endpoints_may_have_the_reference_systems_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blanks are dropped, and so is http://."""
    monkeypatch.setenv("ETCD_ENDPOINTS", " http://a:2379/, b:1 ,,[::1]:2379")
    assert load().etcd_endpoints == ("a:2379", "b:1", "[::1]:2379")


def test_a_blank_value_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose files pass variables through that nobody has set."""
    monkeypatch.setenv("GRPC_PORT", " ")
    settings = load()
    assert settings.grpc_port == 8085
    assert "grpc_port" not in settings.model_fields_set


def test_only_the_declared_names_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stray variable of another program, named like a field, changes nothing."""
    for name in ("SHARD_COUNT", "BROKER_URL", "grpc_port", "ETCD_USER", "CHUNK_NODES"):
        monkeypatch.setenv(name, "7")
    assert load() == Settings.model_construct(**{n: f.default for n, f in Settings.model_fields.items()})


def test_code_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests and the embedded cluster may give values by the field's name."""
    monkeypatch.setenv("GRPC_PORT", "9000")
    assert Settings(grpc_port=9001).grpc_port == 9001
    assert Settings().grpc_port == 9000


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("FLEETBEAT_NODE_LEESE", "FLEETBEAT_NODE_LEASE"),
        ("FLEETBEAT_GRPC_PORT", "GRPC_PORT"),
        ("FLEETBEAT_SHARD_COUNT", "SCHEDULER_SHARD_COUNT"),
        ("FLEETBEAT_RECONCILE_INTERVAL", "SCHEDULER_RECONCILE_INTERVAL"),
        ("FLEETBEAT_SERVR", "FLEETBEAT_SERVER"),
    ],
)
def test_an_unknown_name_of_ours_refuses_to_start_and_names_the_nearest(
    monkeypatch: pytest.MonkeyPatch, name: str, near: str
) -> None:
    """A typing error does not pass silently."""
    monkeypatch.setenv(name, "1")
    with pytest.raises(SettingsError, match=f"{name}: there is no such setting; did you mean {near}\\?"):
        load()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FLEETBEAT_SERVER", "a:1"),
        ("FLEETBEAT_DATA", "x"),
        ("FLEETBEAT_AGENT_ID", "n-1"),
        ("FLEETBEAT_WORKLOAD_EPOCH", "4"),
        ("FLEETBEAT_NODE_ID", "n-1"),
        ("FLEETBEAT_TEST_SLOW", "1"),
        ("FLEETBEAT_FRONT_SERVICE_HOST", "10.0.0.1"),
        ("FLEETBEAT_FRONT_SERVICE_PORT_GRPC", "8085"),
        ("FLEETBEAT_FRONT_PORT", "tcp://10.0.0.1:8085"),
        ("FLEETBEAT_FRONT_PORT_8085_TCP_ADDR", "10.0.0.1"),
    ],
)
def test_names_that_others_read_or_kubernetes_sets_are_passed_over(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """A Service named fleetbeat-front must not keep its own pods from starting."""
    monkeypatch.setenv(name, value)
    load()


def test_a_variable_of_the_reference_system_without_effect_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody relies on what is not there; names that other programs use are not mentioned."""
    monkeypatch.setenv("PERSYS_RGW_ENDPOINT", "/c")
    monkeypatch.setenv("PERSYS_RGW_SECRET_KEY", "s3cr3t")
    monkeypatch.setenv("DOMAIN", "example.org")
    with caplog.at_level(logging.WARNING):
        load()
    assert [r.message.split(" is set")[0] for r in caplog.records] == ["PERSYS_RGW_ENDPOINT", "PERSYS_RGW_SECRET_KEY"]
    assert "s3cr3t" not in caplog.text


@pytest.mark.parametrize(
    ("given", "telemetry", "broker"),
    [
        ({"REDIS_ADDR": "r:6379"}, "redis://r:6379/0", "redis://r:6379/1"),
        ({"REDIS_ADDR": "r:6379", "REDIS_DB": "1"}, "redis://r:6379/1", "redis://r:6379/0"),
        (
            {"REDIS_ADDR": "r:6379", "REDIS_PASSWORD": "p@:/ß"},
            "redis://:p%40%3A%2F%C3%9F@r:6379/0",
            "redis://:p%40%3A%2F%C3%9F@r:6379/1",
        ),
        ({"FLEETBEAT_BROKER_URL": "redis://:pw@b:1/5"}, "redis://:pw@b:1/0", "redis://:pw@b:1/5"),
        ({"FLEETBEAT_BROKER_URL": "amqp://u:pw@b//"}, "", "amqp://u:pw@b//"),
        (
            {"FLEETBEAT_BROKER_URL": "sentinel://a:1;sentinel://b:1", "REDIS_ADDR": "r:1"},
            "redis://r:1/0",
            "sentinel://a:1;sentinel://b:1",
        ),
    ],
)
def test_broker_and_telemetry_are_derived(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], telemetry: str, broker: str
) -> None:
    """One Redis serves both in two databases; a broker that is Redis serves telemetry as well."""
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    settings = load()
    assert settings.redis_url == telemetry
    assert settings.effective_broker_url == broker


def test_without_any_broker_only_those_who_need_one_fail() -> None:
    """A front starts without Redis; a worker says what to set."""
    settings = load()
    assert settings.redis_url == ""
    with pytest.raises(SettingsError, match="neither FLEETBEAT_BROKER_URL nor REDIS_ADDR is set"):
        _ = settings.effective_broker_url


def test_secrets_are_masked_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither repr, nor a dump, nor an error, nor what is shown has a password in it."""
    monkeypatch.setenv("FLEETBEAT_BROKER_URL", "redis://u:hunter2@b:1/5")
    monkeypatch.setenv("REDIS_PASSWORD", "hunter2")
    settings = load()
    fields = Settings.model_fields
    written = [shown(fields[n], getattr(settings, n)) for n in fields]
    assert "hunter2" not in "".join([repr(settings), str(settings.model_dump()), settings.model_dump_json(), *written])
    assert shown(fields["broker_url"], settings.broker_url) == "redis://***@b:1/5"
    monkeypatch.setenv("FLEETBEAT_BROKER_URL", "redi://u:hunter2@b:1/5")
    with pytest.raises(SettingsError) as caught:
        load()
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ValueError) as raw:
        Settings()
    assert "hunter2" not in str(raw.value)


@pytest.mark.parametrize(
    ("secret", "expected"),
    [
        ("", ""),
        ("pw", "***"),
        ("amqp://u:p@ss@b//", "amqp://***@b//"),
        ("sentinel://:a@x:1;sentinel://:b@y:1", "sentinel://***@x:1;sentinel://***@y:1"),
        ("redis://b:1/0", "redis://b:1/0"),
    ],
)
def test_of_a_url_only_the_login_is_masked(secret: str, expected: str) -> None:
    """People see which broker it is."""
    assert masked(SecretStr(secret)) == expected


def test_every_setting_says_what_is_allowed() -> None:
    """No field is without meaning and range, and every number has both bounds."""
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert allowed_values(field), name
        if "number" in allowed_values(field) or "duration" in allowed_values(field):
            assert " to " in allowed_values(field), name


def test_each_section_begins_at_a_setting() -> None:
    """The table of sections does not drift from the fields."""
    assert set(Settings.sections) <= set(Settings.model_fields)
    assert next(iter(Settings.model_fields)) in Settings.sections


def test_settings_of_a_process_are_read_from_its_environment() -> None:
    """A process with a wrong setting ends, as a whole process does."""
    code = "from scheduler.settings import load; print(load().grpc_port)"
    environment = {**os.environ, "GRPC_PORT": "9123"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "9123\n"
