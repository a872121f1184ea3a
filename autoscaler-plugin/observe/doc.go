// Package observe sees one model as it is at one moment: how many replicas it has and of
// which variants, what its engines say of themselves, and how many requests wait for it.
//
// Its answer is a Snapshot, a plain value from which every strategy decides and which is
// kept beside the decision, so that the decision can be replayed. A Controller says how many
// replicas there are (NewController); a Reporter says what engines report: a Scraper finds them
// through Consul and reads their metrics pages, and Prometheus asks a Prometheus server.
//
// It guarantees:
//
//   - What could not be seen is told and never looks idle: a replica that nobody could read
//     is stale or unknown, a queue that no gateway reports is not known, and a source that
//     did not answer is named in Snapshot.Away.
//   - An error is answered only where nothing at all is known.
//   - The same answers of the sources give the same Snapshot, whatever their order, and a
//     Snapshot that went through JSON is the same Snapshot.
//   - The conversions to the inputs of the pure packages (Capacity, Measured, Average,
//     Backlog, Utilization, Samples) depend on the Snapshot and their arguments alone.
//   - Ages never come from two clocks: those of samples are from this host's clock, or from
//     the Prometheus server's own.
package observe
