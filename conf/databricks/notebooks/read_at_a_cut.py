# Databricks notebook source
# MAGIC %md
# MAGIC # Silver and gold at one moment
# MAGIC
# MAGIC Each table of the lake has its own versions. A *cut* names the versions that together show one
# MAGIC commit of the source. This notebook reads the newest cut of gold, and silver's tables at the same
# MAGIC commit, as temporary views `silver_<table>` and `gold_<document>`.
# MAGIC
# MAGIC It needs `READ FILES` on the external location of the lake, and a runtime with Spark 4. The versions
# MAGIC that a cut names are kept for `lake.retention` (7 days). Run it again for a newer moment.

# COMMAND ----------

from pyspark.errors import PySparkException

dbutils.widgets.text("lake", "s3://bucket/lake", "lake.path of the pipeline file")
dbutils.widgets.text("as_of", "", "a commit LSN as a number; empty: the newest")

# COMMAND ----------

lake = dbutils.widgets.get("lake").rstrip("/")
as_of = dbutils.widgets.get("as_of")
until = f"WHERE commit_lsn <= {int(as_of)}" if as_of else ""
spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW cuts AS SELECT * FROM delta.`{lake}/control/cuts` {until}")

# COMMAND ----------

# MAGIC %md
# MAGIC A table may have been unchanged for a week or longer, and changed after the cut. Then the version that
# MAGIC the cut names is old, but all of its files exist. Delta refuses the version because of its age, unless
# MAGIC this session has the setting below. Serverless compute does not allow the setting. There, such a table
# MAGIC ends the cell that creates the views: run the notebook again after gold's next cut, or on a cluster.

# COMMAND ----------

old_versions = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"
try:
    spark.conf.set(old_versions, "false")
except PySparkException as refused:
    print(f"Old versions of tables cannot be read here: {refused.getCondition()}")

# COMMAND ----------

# MAGIC %md
# MAGIC Which versions belong together: gold's newest cut, and silver's at that commit. If a cut was
# MAGIC recorded again, the later record counts. Without documents it is silver's newest.

# COMMAND ----------

# MAGIC %sql
# MAGIC CREATE OR REPLACE TEMPORARY VIEW cut AS
# MAGIC WITH moment AS (
# MAGIC   SELECT coalesce(
# MAGIC     max(commit_lsn) FILTER (WHERE layer = 'gold'), max(commit_lsn) FILTER (WHERE layer = 'silver')
# MAGIC   ) AS lsn
# MAGIC   FROM cuts
# MAGIC )
# MAGIC SELECT layer, table_name, delta_version, commit_lsn, commit_ts
# MAGIC FROM (
# MAGIC   SELECT cuts.*, rank() OVER (PARTITION BY layer ORDER BY commit_lsn DESC, recorded_at DESC) AS age
# MAGIC   FROM cuts JOIN moment ON commit_lsn <= lsn
# MAGIC   WHERE layer IN ('silver', 'gold')
# MAGIC )
# MAGIC WHERE age = 1 AND table_name IS NOT NULL

# COMMAND ----------

# MAGIC %sql
# MAGIC SELECT
# MAGIC   layer, table_name, delta_version, commit_ts,
# MAGIC   printf('%X/%X', shiftright(commit_lsn, 32), commit_lsn & 4294967295) AS lsn
# MAGIC FROM cut
# MAGIC ORDER BY layer DESC, table_name

# COMMAND ----------

# MAGIC %md
# MAGIC One view for each table. `VERSION AS OF` takes a literal, so the statements are composed here. If a
# MAGIC table's name has other characters than small letters, digits and `_`, its folder has the name that
# MAGIC `deltasmelt.bronze.lake.location.folder_name` of the wheel returns.

# COMMAND ----------

for row in spark.table("cut").collect():
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW `{row.layer}_{row.table_name}` AS "
        f"SELECT * FROM delta.`{lake}/{row.layer}/{row.table_name}` VERSION AS OF {row.delta_version}"
    )

# COMMAND ----------

# MAGIC %md
# MAGIC Now every query sees one moment. Put your own here.

# COMMAND ----------

# MAGIC %sql
# MAGIC SHOW VIEWS
