package deltasmelt;

import io.delta.storage.S3SingleDriverLogStore;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.s3a.AWSServiceIOException;
import org.apache.hadoop.fs.s3a.Listing;
import org.apache.hadoop.fs.s3a.S3AFileStatus;
import org.apache.hadoop.fs.s3a.S3AFileSystem;
import org.apache.hadoop.fs.s3a.S3ListRequest;
import software.amazon.awssdk.core.exception.SdkException;
import software.amazon.awssdk.services.s3.model.ListObjectsV2Request;

/**
 * Delta's commits on S3A as conditional puts (If-None-Match: *), so that no driver overwrites the commit of
 * another one: the store itself refuses the later of two.
 *
 * <p>delta-storage 4.4.0 excludes the drivers of one JVM alone (delta-io/delta#3596, #4813). S3A 3.4.2 can put
 * on condition, but only where a file is created by this builder (HADOOP-19256); nothing that Delta calls does.
 *
 * <p>A put whose answer was lost is refused when it is repeated. Then what is there tells: our own bytes, which
 * name the transaction by a UUID, mean that the commit came about.
 *
 * <p>A log is listed from the entry on that is asked for. Delta's own store lists all of it, by a request for
 * each thousand objects. Told not to (delta.enableFastS3AListFrom), it needs S3A's classes beside its own, which
 * has them on the class path of the JVM and not among Spark's jars.
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

  @Override
  public Iterator<FileStatus> listFrom(Path path, Configuration conf) throws IOException {
    try {
      List<FileStatus> found = FromAnEntryOn.list(path.getFileSystem(conf), path);
      if (!found.isEmpty()) {
        return found.iterator();
      }
    } catch (ClassCastException | LinkageError another) {
      // not S3A's file system, or of another version
    }
    return super.listFrom(path, conf); // where nothing is found, it tells whether there is a log at all
  }

  /** What knows S3A itself is a class of its own, so that it is linked only when it is used. */
  private static final class FromAnEntryOn {
    private static List<FileStatus> list(FileSystem fs, Path path) throws IOException {
      S3AFileSystem s3a = (S3AFileSystem) fs;
      Path from = s3a.makeQualified(path);
      Path log = from.getParent();
      String key = s3a.pathToKey(from);
      ListObjectsV2Request request =
          ListObjectsV2Request.builder()
              .bucket(s3a.getBucket())
              .prefix(s3a.pathToKey(log) + "/")
              .delimiter("/")
              .startAfter(key.substring(0, key.length() - 1)) // what it names is left out, and is no entry
              .build();
      List<FileStatus> found = new ArrayList<>();
      try {
        RemoteIterator<S3AFileStatus> statuses =
            s3a.getListing()
                .createFileStatusListingIterator(
                    log,
                    S3ListRequest.v2(request),
                    each -> each.getName().compareTo(from.getName()) >= 0,
                    new Listing.AcceptAllButSelfAndS3nDirs(log),
                    s3a.getActiveAuditSpan());
        while (statuses.hasNext()) {
          found.add(statuses.next());
        }
      } catch (SdkException | AWSServiceIOException refused) {
        return List.of(); // S3's directory buckets know no beginning; what else it was, the whole list tells
      }
      Collections.sort(found); // by name, as Delta asks for; a directory bucket has an order of its own
      return found;
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
