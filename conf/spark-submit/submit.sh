#!/bin/sh
# Runs a command of smelt under spark-submit:
#
#     submit.sh [options of spark-submit] -- COMMAND FILE [options of smelt]
#     submit.sh --master yarn --driver-memory 4g -- silver pipeline.yml --until-caught-up
#
# The driver needs deltasmelt in its Python (PYSPARK_PYTHON, default python3); executors need no Python at all, because
# every stage is Spark SQL. Delta's jars, and those for the lake's store, are added unless the options name jars or packages
# themselves; Spark's log goes to $SMELT_LOGS/spark-submit-COMMAND.log (default: the working folder) unless the options name
# log settings. A file for each command, since two JVMs cannot rotate one. Deploy mode: client.
set -eu

folder=$(cd "$(dirname "$0")" && pwd)
python=${PYSPARK_PYTHON:-python3}

usage() {
  echo "usage: $0 [options of spark-submit] -- COMMAND FILE [options of smelt]" >&2
  exit 2
}

# The words before "--" are rotated behind it, so that all keep their spelling, spaces and empty words included.
jars=ours
log=ours
count=0
found=no
for word in "$@"; do
  if [ "$word" = "--" ]; then
    found=yes
    break
  fi
  case $word in
    --jars | --jars=* | --packages | --packages=* | spark.jars=* | spark.jars.packages=*) jars=theirs ;;
    --driver-java-options | --driver-java-options=* | --properties-file | --properties-file=*) log=theirs ;;
  esac
  count=$((count + 1))
done
[ "$found" = yes ] && [ $# -gt $((count + 1)) ] || usage
command=$(shift $((count + 1)); echo "$1")

if [ "$jars" = ours ]; then
  list=$(shift $count; "$python" -P -m deltasmelt.pipelines.spark.jars "$@") || exit 1
fi

if [ -n "${SPARK_HOME:-}" ]; then
  submit=$SPARK_HOME/bin/spark-submit
elif submit=$(command -v spark-submit); then
  :
else
  submit=$("$python" -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent / "bin" / "spark-submit")') || {
    echo "error: spark-submit was not found" >&2
    echo "remedy: set SPARK_HOME, or install pyspark into $python" >&2
    exit 1
  }
fi

# Now: [options] -- [command]. Put ours in front, and main.py in the place of "--".
index=0
for word in "$@"; do
  shift
  if [ $index -eq $count ]; then
    set -- "$@" "$folder/main.py"
  else
    set -- "$@" "$word"
  fi
  index=$((index + 1))
done
[ "$jars" = theirs ] || set -- --jars "$list" "$@"
[ "$log" = theirs ] || set -- --driver-java-options \
  "\"-Dlog4j2.configurationFile=$folder/../log4j2.properties\" \"-Dsmelt.log=${SMELT_LOGS:-.}/spark-submit-$command.log\"" "$@"
export PYSPARK_PYTHON="$python"
exec "$submit" "$@"
