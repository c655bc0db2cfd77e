// Writes and reads through a group with kafkajs, and prints what it saw as JSON.
const { Kafka, CompressionTypes, logLevel } = require('kafkajs')

const [bootstrap, topic, count] = [process.argv[2], process.argv[3], Number(process.argv[4])]
const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.ERROR })

async function main () {
  const admin = kafka.admin()
  await admin.connect()
  await admin.createTopics({ topics: [{ topic, numPartitions: 3 }] })
  const producer = kafka.producer({ idempotent: true })
  await producer.connect()
  const messages = Array.from({ length: count }, (_, n) => ({
    key: `key-${n}`, value: `value-${n}`, headers: { number: `${n}` }
  }))
  await producer.send({ topic, compression: CompressionTypes.GZIP, messages })
  const consumer = kafka.consumer({ groupId: `${topic}-group` })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  const values = []
  await new Promise(resolve => consumer.run({
    eachMessage: async ({ message }) => {
      values.push(`${message.value}/${message.headers.number}`)
      if (values.length === count) resolve()
    }
  }))
  await consumer.disconnect()
  await producer.disconnect()
  const offsets = await admin.fetchTopicOffsets(topic)
  await admin.disconnect()
  console.log(JSON.stringify({ values, end: offsets.reduce((sum, o) => sum + Number(o.high), 0) }))
}

main().then(() => process.exit(0), error => { console.error(error); process.exit(1) })
