import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

/** A transactional producer and readers of the Java client: `java Transactions.java BOOTSTRAP TOPIC [old]`, a topic of three partitions. Prints name=value. */
public class Transactions {
    static final int PARTITIONS = 3;
    static String bootstrap, topic;

    static KafkaProducer<String, String> producer(String id, int timeoutMs) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", bootstrap);
        config.put("transactional.id", id);
        config.put("transaction.timeout.ms", timeoutMs);
        return new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> consumer(String group, String isolation) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", bootstrap);
        config.put("group.id", group);
        config.put("isolation.level", isolation);
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", "false");
        return new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
    }

    static int count(String isolation) {
        try (KafkaConsumer<String, String> reader = consumer("unused", isolation)) {
            List<TopicPartition> places = new ArrayList<>();
            for (int n = 0; n < PARTITIONS; n++) places.add(new TopicPartition(topic, n));
            reader.assign(places);
            reader.seekToBeginning(places);
            Map<TopicPartition, Long> ends = reader.endOffsets(places);
            int found = 0;
            while (places.stream().anyMatch(place -> reader.position(place) < ends.get(place)))
                found += reader.poll(Duration.ofMillis(100)).count();
            return found;
        }
    }

    static void send(KafkaProducer<String, String> producer, String name) throws Exception {
        for (int n = 0; n < PARTITIONS; n++) producer.send(new ProducerRecord<>(topic, n, null, name + n)).get();
    }

    static void say(String name, Object value) {
        System.out.println(name + "=" + value);
    }

    static String failure(java.util.concurrent.Callable<?> work) {
        try {
            work.call();
            return "none";
        } catch (Exception error) {
            Throwable cause = error.getCause() == null ? error : error.getCause();
            return cause.getClass().getSimpleName();
        }
    }

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        topic = arguments[1];
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", (Object) bootstrap))) {
            say("version", admin.describeFeatures().featureMetadata().get().finalizedFeatures().get("transaction.version").maxVersionLevel());
            commitAndAbort(admin);
        }
        zombie();
        consumeTransformProduce();
        if (arguments.length == 2) timeout();
        say("end.committed", count("read_committed"));
    }

    static void commitAndAbort(Admin admin) throws Exception {
        try (KafkaProducer<String, String> producer = producer("tx", 60_000)) {
            producer.initTransactions();
            for (int n = 0; n < 4; n++) {
                producer.beginTransaction();
                send(producer, "t" + n + ".");
                if (n % 2 == 0) producer.commitTransaction();
                else producer.abortTransaction();
            }
            producer.beginTransaction();
            producer.abortTransaction();
            TransactionDescription found = admin.describeTransactions(List.of("tx")).description("tx").get();
            say("state", found.state());
            say("epoch", found.producerEpoch());
        }
        say("committed", count("read_committed"));
        say("all", count("read_uncommitted"));
    }

    static void zombie() throws Exception {
        KafkaProducer<String, String> zombie = producer("shared", 60_000);
        zombie.initTransactions();
        zombie.beginTransaction();
        send(zombie, "zombie");
        try (KafkaProducer<String, String> successor = producer("shared", 60_000)) {
            successor.initTransactions();
            say("zombie.send", failure(() -> zombie.send(new ProducerRecord<>(topic, 0, null, "more")).get()));
            say("zombie.commit", failure(() -> { zombie.commitTransaction(); return null; }).equals("none") ? "none" : "refused");
            successor.beginTransaction();
            send(successor, "successor");
            successor.commitTransaction();
        }
        zombie.close(Duration.ZERO);
        say("zombie.committed", count("read_committed"));
    }

    static void consumeTransformProduce() throws Exception {
        TopicPartition place = new TopicPartition(topic, 0);
        try (KafkaProducer<String, String> producer = producer("copier", 60_000)) {
            producer.initTransactions();
            for (boolean commits : new boolean[] {false, true}) {
                try (KafkaConsumer<String, String> reader = consumer("copiers", "read_committed")) {
                    reader.subscribe(List.of(topic));
                    while (reader.poll(Duration.ofMillis(100)).isEmpty()) { }
                    producer.beginTransaction();
                    producer.send(new ProducerRecord<>(topic, 2, null, "copy"));
                    producer.sendOffsetsToTransaction(Map.of(place, new OffsetAndMetadata(1)), reader.groupMetadata());
                    if (commits) producer.commitTransaction();
                    else producer.abortTransaction();
                    OffsetAndMetadata found = reader.committed(Set.of(place)).get(place);
                    say("offset." + commits, found == null ? "none" : found.offset());
                }
            }
        }
    }

    /** With transactions version 2 a producer that took too long aborts, and goes on. */
    static void timeout() throws Exception {
        try (KafkaProducer<String, String> slow = producer("slow", 500)) {
            slow.initTransactions();
            slow.beginTransaction();
            send(slow, "late");
            int before = count("read_committed");
            KafkaProducer<String, String> other = producer("other", 60_000);
            other.initTransactions();
            other.beginTransaction();
            send(other, "other");
            other.commitTransaction();
            other.close();
            while (count("read_committed") == before) { } // until the slow one no longer holds it back
            say("late.commit", failure(() -> { slow.commitTransaction(); return null; }));
            slow.abortTransaction();
            slow.beginTransaction();
            send(slow, "again");
            slow.commitTransaction();
        }
    }
}
