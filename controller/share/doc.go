// Package share divides among gateways what all of them use: the slots of replicas, the places in
// queues, and the limits of keys. It is pure: it has no clock and does no I/O.
//
// A gateway claims each resource in its report, with what it holds and what it needs, and gets its
// shares in the answer. A Ledger has the claims of the live gateways.
//
// It guarantees, for gateways that obey the answer to their newest report:
//
//   - The shares in use are never more than the whole. A gateway may use what its last report
//     shows or what the answer to it granted, whichever is more. So a share that shrinks is given
//     to another gateway only after a report that shows that it shrank. If the whole shrinks, or
//     a gateway returns with a share that was given away, no share grows until the sum fits.
//   - Slots are divided among keys by their weights, up to their needs, whichever gateways they use, and
//     a gateway's share is the sum of its keys' parts. A gateway whose queue weighs each key by its part
//     of the key's need at all gateways (GatewayOrders.KeyParts) then serves each key its fair share.
//     What is rounded to whole slots, and a gateway that has its one slot, are the exceptions.
//   - Other shares follow need by max-min fairness; see Divide. A gateway that is alone gets everything.
//   - Shares settle. For constant needs each gateway has its final share after three reports, once
//     two reports of each have shown the needs. If needs barely differ from report to report,
//     shares stay.
//   - No gateway starves. If a resource has fewer units than gateways that need one, each of these
//     gets one unit in turn: a gateway keeps it for turnReports reports, then the gateway that has
//     waited longest gets it, as soon as the unit is not in use any more. Such a resource is the
//     exception from shares that settle.
package share
