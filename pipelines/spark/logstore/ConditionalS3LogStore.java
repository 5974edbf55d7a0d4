package deltasmelt;

import io.delta.storage.S3SingleDriverLogStore;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Delta's commits on S3A as conditional puts (If-None-Match: *), so that no driver overwrites the commit of
 * another one: the store itself refuses the later of two.
 *
 * <p>delta-storage 4.4.0 excludes the drivers of one JVM alone (delta-io/delta#3596, #4813). S3A 3.4.2 can put
 * on condition, but only where a file is created by this builder (HADOOP-19256); nothing that Delta calls does.
 *
 * <p>A put whose answer was lost is refused when it is repeated. Then what is there tells: our own bytes, which
 * name the transaction by a UUID, mean that the commit came about.
 */
public class ConditionalS3LogStore extends S3SingleDriverLogStore {
  private static final String CONDITIONAL = "fs.option.create.conditional.overwrite";
  private static final int ATTEMPTS = 5;
  private static final long PAUSE_MILLIS = 200;

  public ConditionalS3LogStore(Configuration conf) {
    super(conf);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf)
      throws IOException {
    if (overwrite) {
      super.write(path, actions, true, conf);
      return;
    }
    StringBuilder text = new StringBuilder();
    actions.forEachRemaining(line -> text.append(line).append('\n'));
    byte[] bytes = text.toString().getBytes(StandardCharsets.UTF_8);
    FileSystem fs = path.getFileSystem(conf);
    for (int attempt = 1; ; attempt++) {
      IOException refused;
      try {
        put(fs, path, bytes);
        return;
      } catch (IOException error) {
        if (!isRefusal(error)) {
          throw error;
        }
        refused = error;
      }
      try {
        if (holds(fs, path, bytes)) {
          return;
        }
        throw new java.nio.file.FileAlreadyExistsException(path.toString());
      } catch (FileNotFoundException absent) { // the other put, which ours met, did not come about
        if (attempt == ATTEMPTS) {
          throw refused;
        }
        pause();
      }
    }
  }

  /** A stream that fails is not closed: closing it would put what it has. */
  private static void put(FileSystem fs, Path path, byte[] bytes) throws IOException {
    FSDataOutputStream out =
        (FSDataOutputStream) fs.createFile(path).overwrite(false).must(CONDITIONAL, true).build();
    out.write(bytes);
    out.close();
  }

  private static boolean isRefusal(Throwable error) {
    for (Throwable each = error; each != null; each = each.getCause()) {
      String said = String.valueOf(each.getMessage());
      if (each instanceof FileAlreadyExistsException
          || said.contains("Status Code: 412")
          || said.contains("Status Code: 409")) {
        return true;
      }
    }
    return false;
  }

  private static boolean holds(FileSystem fs, Path path, byte[] bytes) throws IOException {
    try (FSDataInputStream in = fs.open(path)) {
      return Arrays.equals(in.readAllBytes(), bytes);
    }
  }

  private static void pause() throws IOException {
    try {
      Thread.sleep(PAUSE_MILLIS);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new IOException(error);
    }
  }
}
