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
//   - Other shares follow need by max-min fairness; see Divide. A gateway that is alone gets everything.
//   - Shares settle. For constant needs each gateway has its final share after three reports, once
//     two reports of each have shown the needs. If needs barely differ from report to report,
//     shares stay. A unit that cannot be divided is the exception.
//   - Gateways take turns with units that cannot be divided, if a share would differ from its ideal
//     by more than a 16th: a turn is turnReports reports of each gateway, and after it those get the units
//     that have had too little for longest. So over time a gateway has its ideal share.
//   - No gateway starves. One that needs a unit has one for at least one turn of 16, or for half of an even
//     part where there are too few units for that, as soon as the unit is not in use any more.
package share
