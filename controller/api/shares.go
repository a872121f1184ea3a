package api

// ShareKind is a kind of resource that gateways share.
type ShareKind = string

// Kinds of resources that gateways share.
const (
	ShareSlots       ShareKind = "slots"       // the slots of a replica
	ShareQueue       ShareKind = "queue"       // the places in the queue of a model
	ShareConcurrency ShareKind = "concurrency" // the concurrent requests of a key
	ShareRate        ShareKind = "rate"        // the requests per minute of a key
	ShareTokens      ShareKind = "tokens"      // the tokens per minute of a key
	ShareBudget      ShareKind = "budget"      // what is left of the budgets of a key, in tokens
)

// ShareWhole is the whole of a resource of kind ShareRate or ShareTokens: a share is in
// thousandths of the limit.
const ShareWhole = 1000

// MaxReportShares is how many shares a report may claim.
const MaxReportShares = 4000

// MaxShareUnits is the maximum of the numbers of a ShareClaim.
const MaxShareUnits = 1 << 30

// MaxReportKeys is how many KeyDemands a report may have.
const MaxReportKeys = 256

// KeyDemand is what one key wants of the slots of a model at one gateway, now. Slots are divided among
// keys by their weights, whichever gateways they use, and then among gateways.
type KeyDemand struct {
	Model string
	// Key is the name of a key. Empty: all keys together that have no KeyDemand of their own, whose
	// weights are added up.
	Key    string  `json:",omitempty"`
	Weight float64 `min:"0"`
	// Need is how many of its requests are at engines or wait for one.
	Need int `min:"0"`
}

// ShareClaim is what one gateway holds and needs of a resource that all gateways share. A
// resource that a report leaves out has no share at this gateway. A gateway that drains, and uses
// and needs nothing of any resource, gives all of them back with that report.
type ShareClaim struct {
	Kind ShareKind `enum:"api.ShareKind"`
	// Name is of the replica, the model or the key.
	Name string
	// Of is the whole that the gateway knows: the slots, the length of the queue, the limit, or
	// ShareWhole. If gateways know different ones, the least is divided. Of a budget the controller
	// divides what is left by its own count.
	Of int `min:"0"`
	// Held is the share that the gateway obeys now: GatewayShare.Units of the last answer that it
	// got. It may get an answer only before it sends its next report; a later one is void.
	Held int `min:"0"`
	// Used is what is in use now. It is above Held for a while after Held shrank. Of a budget it is how
	// much of Held was used, and is counted in this report's Usage; 0 if that does not have all counters
	// that are not delivered. It may be above Held by what the requests took that were let in before.
	Used int `min:"0"`
	// Need is what the gateway would use now if it had the whole; it may be more than that.
	Need int `min:"0"`
}

// GatewayShare is the part of a resource that a gateway may use from now on. 0 slots of a replica means that
// other gateways have them. The gateway keeps that, too, for the first 5 s that the controller is away, and then uses one slot.
type GatewayShare struct {
	Kind  ShareKind `enum:"api.ShareKind"`
	Name  string
	Units int
}
