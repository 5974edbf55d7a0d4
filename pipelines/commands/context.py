"""Shared openings of several commands: Spark, gold, the documents, a lake with a cut."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from deltasmelt.bronze.config.suggestions import suggestion
from deltasmelt.bronze.errors import ConfigurationError, DefiniteError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.pipelines.selected import selected, there_are
from deltasmelt.pipelines.spark.jvm_death import death_reported
from deltasmelt.pipelines.spark.session_owner import take
from deltasmelt.pipelines.terminal.failures import without_secrets
from deltasmelt.pipelines.terminal.interrupts import INTERRUPTIONS, interruption_behind, terminable
from deltasmelt.pipelines.terminal.jvm_errors import in_words
from deltasmelt.pipelines.terminal.logs import spark_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.control import Cut
    from deltasmelt.gold.cycle import Gold
    from deltasmelt.gold.language.document import Document
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.pipelines.terminal.output import Output


@contextmanager
def spark_for(pipeline: Pipeline, output: Output) -> Iterator[SparkSession]:
    """Yield a session for one command; stop only an owned session afterwards."""
    section, log = pipeline.spark, spark_log(pipeline.pipeline)
    failure: BaseException | None = None
    with terminable():
        taken = take(pipeline, output.report, brief=True)
        try:
            with death_reported(section, log), taken.work(section) as session:
                yield session
        except BaseException as error:  # noqa: BLE001 - raised again below, in words
            interruption = interruption_behind(error, INTERRUPTIONS)
            if interruption is not None:
                # `work` has ended an owned session: it is in the middle of a call and would not answer.
                raise interruption from None
            failure = in_words(error)
        taken.end()
    if failure is not None:
        raise failure


def open_gold(spark: SparkSession, pipeline: Pipeline, control: ControlTables) -> Gold:
    """Return the pipeline's documents, over silver as described by bronze's newest relations."""
    from deltasmelt.bronze.store.relations import read_relations  # noqa: PLC0415 - a job of bronze alone needs none of these
    from deltasmelt.gold.cycle import Gold  # noqa: PLC0415
    from deltasmelt.silver.schema.catalog import silver_catalog  # noqa: PLC0415

    lake = pipeline.lake_address()
    documents = load_documents_of(pipeline, {})  # the caller has found those that are meant
    return Gold(
        spark, lake, documents, lambda: silver_catalog(read_relations(lake), pipeline.silver), control
    )


def documents_named(
    pipeline: Pipeline, name: str | None, *, matches: Callable[[str, str], bool] = str.__eq__
) -> list[Document]:
    """Return the selected documents: one or all (None). `matches` compares a document's name with `name`.

    Raises:
        ConfigurationError: no document has the name, or the file of a selected document is wrong.
    """
    problems: dict[str, ConfigurationError] = {}
    documents = {document.name: document for document in load_documents_of(pipeline, problems)}

    def unknown(name: str) -> ConfigurationError:
        if problems:  # an unreadable file may define the document
            return problems.get(name, next(iter(problems.values())))
        return ConfigurationError(
            f"no document matches {name!r}{suggestion(name, documents)}",
            code="document-unknown",
            where=str(pipeline.path),
            remedy=f"gold.documents in the pipeline file selects the files; {there_are(list(documents))}",
        )

    if name is None:
        if problems:
            raise next(iter(problems.values()))
        return list(documents.values())
    names = selected(
        [name], lambda name: [document for document in documents if matches(document, name)], unknown
    )
    return [documents[selected_name] for selected_name in names]


def require_lake(pipeline: Pipeline) -> Cut:
    """Return silver's newest cut; refuse an empty lake at once, before Spark starts."""
    lake = pipeline.lake_address()
    cut = ControlTables(lake).latest_cut("silver")
    if cut is None:
        raise DefiniteError(
            "the lake is empty: silver has no cut yet",
            code="layer-empty",
            where=lake.label,
            remedy=f"run `smelt run {pipeline.path.name} --until-caught-up` first",
        )
    return cut


def documents_to_join(pipeline: Pipeline, output: Output) -> list[Document] | None:
    """Return the documents whose joins decide the clustering of silver's tables; log wrong documents."""
    try:
        return load_documents_of(pipeline)
    except ConfigurationError as error:
        output.report(f"{without_secrets(error.message)}; the clustering of the tables is not changed")
        return None


def load_documents_of(
    pipeline: Pipeline, errors: dict[str, ConfigurationError] | None = None
) -> list[Document]:
    """Return the pipeline's document definitions; for `errors` see `gold.language.document.load_documents`.

    Raises:
        ConfigurationError: a file is wrong (the message names file and line), or a pattern selects no file.
    """
    from deltasmelt.gold.language.document import load_documents  # noqa: PLC0415 - a job of bronze alone has no use for it

    return list(load_documents(pipeline.document_files(), errors))
