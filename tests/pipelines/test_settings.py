from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.config.timing import LEASE_SECONDS_IN_CATALOGS
from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lake.place import Store, options_of
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.terminal.failures import without_secrets

if TYPE_CHECKING:
    from pathlib import Path

    from deltasmelt.bronze.config.sections import BronzeSettings

SOURCE = "source: {host: db, slot: s, publication: p}\n"


def pipeline_file(folder: Path, text: str) -> Path:
    path = folder / "pipeline.yml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_shortest_pipeline_file_has_the_documented_defaults(tmp_path: Path) -> None:
    pipeline = load_pipeline(pipeline_file(tmp_path, f"pipeline: shop\n{SOURCE}lake: {{path: ./lake}}\n"))
    assert pipeline.bronze.flush_interval == 0.5
    assert pipeline.bronze.flush_bytes == 64_000_000
    assert pipeline.snapshot.mode == "initial"
    assert pipeline.lake.retention == 7 * 86400
    assert pipeline.silver.deletes == "hard"
    assert pipeline.document_files() == []
    assert pipeline.path == tmp_path / "pipeline.yml"


def test_store_lake_commits_rarely_unless_configured(tmp_path: Path) -> None:
    for keys, interval in ((", heartbeat: 20s", 5.0), (", flush_interval: 500ms", 0.5)):
        text = (
            f"pipeline: shop\n{SOURCE}lake: {{path: s3://bucket/lake}}\nbronze: {{flush_bytes: 1MB{keys}}}\n"
        )
        pipeline = load_pipeline(pipeline_file(tmp_path, text))
        assert (pipeline.bronze.flush_interval, pipeline.bronze.flush_bytes) == (interval, 1_000_000)
        assert pipeline.path == tmp_path / "pipeline.yml"


def test_relative_lake_path_starts_at_file_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf").mkdir()
    path = pipeline_file(tmp_path / "conf", f"pipeline: shop\n{SOURCE}lake: {{path: ../lake}}\n")
    monkeypatch.chdir("/")
    assert load_pipeline(path).lake_address().path == str(tmp_path / "lake")


def test_connection_file_paths_start_at_file_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of-the-test")
    keys = "sslmode: verify-full, sslrootcert: certs/ca.pem, sslcert: /etc/smelt.crt, sslkey: ~/smelt.key"
    text = f"pipeline: shop\nsource: {{host: 'a,b', port: '1,2', {keys}, slot: s, publication: p}}\n"
    source = load_pipeline(pipeline_file(tmp_path, f"{text}lake: {{path: ./lake}}\n")).source
    assert (source.sslrootcert, source.sslcert, source.sslkey, source.passfile, source.port) == (
        f"{tmp_path}/certs/ca.pem", "/etc/smelt.crt", "/home/of-the-test/smelt.key", None, "1,2",
    )  # fmt: skip
    text = text.replace("certs/ca.pem", "system").replace("'1,2'", "5433")
    pipeline = load_pipeline(pipeline_file(tmp_path, f"{text}lake: {{path: ./lake}}\n"))
    assert (pipeline.source.sslrootcert, pipeline.source.port) == ("system", "5433")
    assert pipeline.path == tmp_path / "pipeline.yml"
    with pytest.raises(ConfigurationError, match="port"):
        load_pipeline(
            pipeline_file(
                tmp_path, f"pipeline: shop\n{SOURCE.replace('slot', 'port: x, slot')}lake: {{path: l}}"
            )
        )


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("s3://bucket/lake/", "s3://bucket/lake"),
        ("file:///data/lake", "/data/lake"),
        ("/data/lake/", "/data/lake"),
    ],
)
def test_lake_accepts_url_or_absolute_path(tmp_path: Path, text: str, address: str) -> None:
    path = pipeline_file(tmp_path, f"pipeline: shop\n{SOURCE}lake: {{path: '{text}'}}\n")
    assert load_pipeline(path).lake_address().path == address


def test_environment_variables_are_expanded_also_with_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "0123")
    monkeypatch.delenv("SHOP_HOST", raising=False)
    text = "source: {host: '${SHOP_HOST:-db}', password: '${SHOP_PASSWORD}', slot: s, publication: p}"
    pipeline = load_pipeline(pipeline_file(tmp_path, f"pipeline: shop\n{text}\nlake: {{path: lake}}\n"))
    assert pipeline.source.host == "db"
    assert pipeline.source.password is not None
    assert pipeline.source.password.get_secret_value() == "0123"
    assert "0123" not in repr(pipeline)


def test_spark_settings_of_any_type_become_text(tmp_path: Path) -> None:
    spark = "spark: {spark.driver.memory: 4g, spark.sql.shuffle.partitions: 8, spark.ui.enabled: true}\n"
    pipeline = load_pipeline(
        pipeline_file(tmp_path, f"pipeline: shop\n{SOURCE}lake: {{path: lake}}\n{spark}")
    )
    assert pipeline.spark == {
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": "8",
        "spark.ui.enabled": "true",
    }


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (f"pipeline: shop\n{SOURCE}lake: {{path: lake}}\nsliver: {{}}\n", 4, "did you mean 'silver'"),
        (f"pipeline: shop\n{SOURCE}lake: {{retention: 1d}}\n", 3, "path is missing"),
        (
            "pipeline: shop\nsource: {host: db, slot: Not-A-Slot, publication: p}\nlake: {path: lake}\n",
            2,
            "slot",
        ),
        (
            f"pipeline: shop\n{SOURCE}lake: {{path: lake}}\nbronze: {{flush_interval: soon}}\n",
            4,
            "not a duration",
        ),
        (
            f"pipeline: shop\n{SOURCE}lake: {{path: lake}}\nspark: {{driver.memory: 4g}}\n",
            4,
            "not a Spark setting",
        ),
        (f"pipeline: shop\n{SOURCE}lake: {{path: lake}}\ngold: {{documents: d.yml}}\n", 4, "expected a list"),
        (f"{SOURCE}lake: {{path: lake}}\n", 1, "'pipeline' is missing"),
        ("pipeline: [shop\n", 2, ""),
    ],
)
def test_a_mistake_is_named_with_file_and_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    path = pipeline_file(tmp_path, text)
    with pytest.raises(ConfigurationError) as raised:
        load_pipeline(path)
    assert f"{path}:{line}" in str(raised.value)
    assert message in str(raised.value)


def test_executors_cannot_copy_into_catalog_lake(tmp_path: Path) -> None:
    text = f"pipeline: shop\n{SOURCE}lake: {{catalog: main}}\nsnapshot:\n  engine: spark\n"
    with pytest.raises(ConfigurationError, match="is in a catalog") as refused:
        load_pipeline(pipeline_file(tmp_path, text))
    assert refused.value.code == "executors-unfit"
    assert (refused.value.where or "").endswith("pipeline.yml:5")
    assert "local" in (refused.value.remedy or "")
    for lake, engine in (("catalog: main", "local"), ("path: ./lake, catalog: main", "spark")):
        text = f"pipeline: shop\n{SOURCE}lake: {{{lake}}}\nsnapshot: {{engine: {engine}}}\n"
        assert load_pipeline(pipeline_file(tmp_path, text)).snapshot.engine == engine


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("silver: {every: 7}", "silver.every: 7 has no unit (write e.g. 7s or 7m or 7d)"),
        ("bronze: {flush_interval: 0.5}", "bronze.flush_interval: 0.5 has no unit"),
        ("bronze: {flush_bytes: 64}", "bronze.flush_bytes: 64 has no unit (write e.g. 64MB or 64GB)"),
        ("alerts: {lag: 0}", "alerts.lag: must be more than 0, found 0"),
    ],
)
def test_durations_and_sizes_need_a_unit(tmp_path: Path, section: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        load_pipeline(pipeline_file(tmp_path, f"pipeline: shop\n{SOURCE}lake: {{path: l}}\n{section}\n"))
    assert message in str(raised.value)
    for every in ("0", "0s"):
        text = f"pipeline: shop\n{SOURCE}lake: {{path: l}}\nsilver: {{every: {every}}}\n"
        assert load_pipeline(pipeline_file(tmp_path, text)).silver.every == 0


def test_bronze_retention_fits_lake_and_has_bounds(tmp_path: Path) -> None:
    def load(keys: str, lake: str = "path: lake") -> BronzeSettings:
        text = f"pipeline: shop\n{SOURCE}lake: {{{lake}}}\nbronze: {{{keys}}}\n"
        return load_pipeline(pipeline_file(tmp_path, text)).bronze

    bronze = load("retention: 90d, renew: 10GB")
    assert (bronze.retention, bronze.renew) == (90 * 86400, 10_000_000_000)
    assert load("heartbeat: 30s").retention is None
    for keys, lake, code in (
        ("retention: 90d", "catalog: main", "retention-unfit"),
        ("renew: 10GB", "path: lake", "retention-unfit"),
        ("retention: 90d, renew: 1GB}\nsnapshot: {mode: never", "path: lake", "retention-unfit"),
        ("retention: 1h", "path: lake", "yaml-content"),
    ):
        with pytest.raises(ConfigurationError) as raised:
            load(keys, lake)
        assert raised.value.code == code
        assert ":4" in str(raised.value.where)


def test_catalog_lake_has_own_pace_and_leases(tmp_path: Path) -> None:
    """A lake in a catalog has no store."""
    pipeline = load_pipeline(pipeline_file(tmp_path, f"pipeline: shop\n{SOURCE}lake: {{catalog: main}}\n"))
    assert pipeline.lake_address() == Lake(catalog="main")
    assert pipeline.bronze.flush_interval == 10
    assert pipeline.lake_address().place.lease == LEASE_SECONDS_IN_CATALOGS == 120
    pipeline = load_pipeline(
        pipeline_file(tmp_path, f"pipeline: shop\n{SOURCE}lake: {{catalog: main, lease: 5s}}\n")
    )
    assert pipeline.lake_address().place.lease == 5
    path = pipeline_file(tmp_path, f"pipeline: shop\n{SOURCE}lake: {{catalog: main, options: {{a: b}}}}\n")
    with pytest.raises(ConfigurationError, match="options are for object stores") as raised:
        load_pipeline(path)
    assert raised.value.code == "lake-store"
    assert f"{path}:3" in str(raised.value)


def test_soft_deletes_and_history_are_served(tmp_path: Path) -> None:
    settings = "silver: {deletes: soft, history: [public.orders]}"
    pipeline = load_pipeline(
        pipeline_file(tmp_path, f"pipeline: shop\n{SOURCE}lake: {{path: lake}}\n{settings}\n")
    )
    assert (pipeline.silver.deletes, pipeline.silver.history) == ("soft", ["public.orders"])


def test_missing_file_and_folder_are_rejected_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="the pipeline file does not exist"):
        load_pipeline(tmp_path / "nowhere.yml")
    with pytest.raises(ConfigurationError, match="is a folder"):
        load_pipeline(tmp_path)


def test_document_patterns_are_deduplicated_and_missing_file_raises(tmp_path: Path) -> None:
    (tmp_path / "documents").mkdir()
    for name in ("b.yml", "a.yml", "note.txt"):
        (tmp_path / "documents" / name).touch()
    gold = "gold: {documents: [documents/*.yml, documents/a.yml]}"
    text = f"pipeline: shop\n{SOURCE}lake: {{path: lake}}\n{gold}\n"
    files = load_pipeline(pipeline_file(tmp_path, text)).document_files()
    assert [path.name for path in files] == ["a.yml", "b.yml"]
    incomplete = load_pipeline(pipeline_file(tmp_path, text.replace("documents/a.yml", "documents/c.yml")))
    with pytest.raises(ConfigurationError, match=r"gold\.documents names documents/c\.yml"):
        incomplete.document_files()


def test_config_map_files_are_resolved_after_change(tmp_path: Path) -> None:
    """The kubelet links each file through ``..data`` to a folder, and replaces this folder."""
    for version in ("..v1", "..v2"):
        (tmp_path / version).mkdir()
        text = f"pipeline: shop\n{SOURCE}lake: {{path: lake}}\nquality: {{suites: [suites.yml]}}\n"
        (tmp_path / version / "pipeline.yml").write_text(text)
        (tmp_path / version / "suites.yml").touch()
    (tmp_path / "..data").symlink_to("..v1")
    for name in ("pipeline.yml", "suites.yml"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    pipeline = load_pipeline(tmp_path / "pipeline.yml")
    (tmp_path / "..new").symlink_to("..v2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    shutil.rmtree(tmp_path / "..v1")
    assert pipeline.folder == tmp_path
    assert pipeline.suite_files() == [tmp_path / "suites.yml"]
    assert load_pipeline(pipeline.path).lake_address().path == str(tmp_path / "lake")


def test_token_in_lake_address_is_not_repeated(tmp_path: Path) -> None:
    address = "abfss://me:geheim@account.example/lake?sv=2024&sig=SECRET%3D"
    file = tmp_path / "pipeline.yml"
    file.write_text(
        f"pipeline: a\nsource: {{host: db, slot: s, publication: p}}\nlake: {{path: '{address}'}}\n"
    )
    with pytest.raises(ConfigurationError) as caught:
        load_pipeline(file)
    assert caught.value.code == "lake-path"
    assert "account.example/lake" in str(caught.value)
    assert "SECRET" not in str(caught.value)
    assert "geheim" not in str(caught.value)


SECRET = "gEh31m-Wort"


def test_store_options_use_environment_and_stay_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_SECRET", SECRET)
    options = "{aws_region: eu-central-1, aws_secret_access_key: '${LAKE_SECRET}', fs.s3a.threads.max: '20'}"
    text = f"pipeline: shop\n{SOURCE}lake: {{path: 's3://options/lake/', options: {options}}}\n"
    pipeline = load_pipeline(pipeline_file(tmp_path, text))
    lake = pipeline.lake_address()
    assert options_of(lake.uri("bronze", "changes")) == {
        "aws_region": "eu-central-1",
        "aws_secret_access_key": SECRET,
    }
    assert isinstance(lake.place, Store)
    assert lake.place.options["fs.s3a.threads.max"] == "20"
    assert SECRET not in repr(pipeline) + str(pipeline) + pipeline.model_dump_json()
    assert without_secrets(f"the store said {SECRET}") == "the store said ***"


@pytest.mark.parametrize(
    ("lake", "line", "message"),
    [
        ("{path: 'foo://bucket/lake'}", 3, "a lake cannot be in foo://; supported are abfs://"),
        (
            "\n  path: s3://wrong/lake\n  options:\n    aws_secret_acces_key: '${LAKE_SECRET}'",
            6,
            "unknown option 'aws_secret_acces_key' of s3://; did you mean 'aws_secret_access_key'?",
        ),
        (
            "\n  path: s3://wrong/lake\n  options: {azure_storage_account_key: '${LAKE_SECRET}'}",
            5,
            "unknown option 'azure_storage_account_key' of s3://",
        ),
        (
            "\n  path: ./lake\n  options: {aws_secret_access_key: '${LAKE_SECRET}'}",
            5,
            "options are for object stores; this lake is a local folder",
        ),
    ],
)
def test_unknown_store_or_option_is_rejected_with_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lake: str, line: int, message: str
) -> None:
    monkeypatch.setenv("LAKE_SECRET", SECRET)
    path = pipeline_file(tmp_path, f"pipeline: shop\n{SOURCE}lake: {lake}\n")
    with pytest.raises(ConfigurationError) as caught:
        load_pipeline(path)
    assert caught.value.code == "lake-store"
    assert caught.value.message.startswith(message)
    assert caught.value.where == f"{path}:{line}"
    assert SECRET not in str(caught.value)


def test_option_of_wrong_type_is_rejected_without_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_SECRET", SECRET)
    options = "{aws_secret_access_key: ['${LAKE_SECRET}']}"
    text = f"pipeline: shop\n{SOURCE}lake: {{path: 's3://typed/lake', options: {options}}}\n"
    with pytest.raises(ConfigurationError) as caught:
        load_pipeline(pipeline_file(tmp_path, text))
    assert SECRET not in str(caught.value)


def test_environment_token_of_different_key_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", SECRET)
    keys = "aws_access_key_id: a, aws_secret_access_key: b"
    lake = "\n  path: s3://token/lake\n  options: {KEYS}\n"
    path = pipeline_file(tmp_path, f"pipeline: shop\n{SOURCE}lake: {lake.replace('KEYS', keys)}")
    with pytest.raises(
        ConfigurationError, match=("AWS_SESSION_TOKEN of the environment belongs to another key")
    ):
        load_pipeline(path)
    load_pipeline(pipeline_file(tmp_path, path.read_text().replace(keys, f"{keys}, aws_session_token: c")))
    load_pipeline(pipeline_file(tmp_path, path.read_text().replace(keys, "aws_allow_http: true")))


@pytest.mark.parametrize("place", ["s3:/bucket/lake", "s3:///lake", "gs:bucket"])
def test_a_url_without_a_bucket_is_no_folder(tmp_path: Path, place: str) -> None:
    with pytest.raises(ConfigurationError, match="is a URL without a bucket"):
        load_pipeline(pipeline_file(tmp_path, f"pipeline: shop\n{SOURCE}lake: {{path: '{place}'}}\n"))
