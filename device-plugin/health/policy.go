package health

import (
	"fmt"
	"maps"
)

// Action is what an XID does to its GPU's health.
type Action int

// The actions, from the mildest to the gravest.
const (
	// Ignore counts the XID and does nothing else: it speaks of a program, or
	// only accompanies another XID.
	Ignore Action = iota
	// Warn logs the XID. Several of them in a short time (Config.StormCount)
	// act like Pause.
	Warn
	// Pause makes the GPU unhealthy until it has been quiet for a time and has
	// answered all the while. Faults that come back pause it longer each time.
	Pause
	// UntilReset makes the GPU unhealthy until there is proof that it was
	// reset (see Machine), because what it computes until then is not to be
	// trusted, or because it computes nothing.
	UntilReset
)

// String is the action's name as it stands in logs.
func (a Action) String() string {
	switch a {
	case Ignore:
		return "ignore"
	case Warn:
		return "warn"
	case Pause:
		return "pause"
	case UntilReset:
		return "until-reset"
	}
	return fmt.Sprintf("action(%d)", int(a))
}

// Rule is what the policy says of one XID.
type Rule struct {
	// Action is what to do.
	Action Action
	// Meaning is what the XID says, in a few words, for people.
	Meaning string
}

// Policy says what each XID means for a GPU's health. An XID that it does not
// name gets Unknown.
type Policy map[uint64]Rule

// Unknown is the rule for XIDs that nobody has judged: the GPU is spared for a
// while and comes back by itself. Kubernetes' plugin takes such a GPU out for
// good, which turns every new application-level XID into an outage.
var Unknown = Rule{Pause, "an XID that the policy does not know"}

// rule finds the rule for an XID.
func (p Policy) rule(code uint64) Rule {
	if r, ok := p[code]; ok {
		return r
	}
	return Unknown
}

// DefaultPolicy judges the XIDs of NVIDIA's catalogue ("Analyzing Xid Errors
// with the Xid Catalog", docs.nvidia.com/deploy/xid-errors) by the immediate
// action that it names: RESTART_APP and IGNORE say nothing against the GPU,
// RESET_GPU and RESTART_BM make it unhealthy until it was reset. Where the
// catalogue asks for a person's judgement the comment gives ours. The caller
// owns the result.
func DefaultPolicy() Policy { return maps.Clone(defaultPolicy) }

var defaultPolicy = Policy{
	// Programs that do wrong. NVIDIA's Kubernetes plugin ignores 13, 31, 43,
	// 45, 68 and 109 as application errors; we judge 109 below.
	8:   {Ignore, "a program's channel stopped; the catalogue says: restart the program"},
	11:  {Ignore, "a program sent an invalid command stream"},
	14:  {Ignore, "driver notice; the catalogue says: ignore"},
	25:  {Ignore, "a program sent an illegal notification request"},
	13:  {Ignore, "a program's kernel raised an exception on the graphics engine"},
	31:  {Ignore, "a program accessed memory that it does not have (MMU fault)"},
	32:  {Ignore, "a program sent a corrupted command stream"},
	37:  {Ignore, "driver notice; the catalogue says: ignore"},
	38:  {Ignore, "a program's channel failed in the driver's firmware"},
	39:  {Ignore, "a program's copy engine channel failed"},
	40:  {Ignore, "a program's copy engine channel failed"},
	41:  {Ignore, "a program's copy engine channel failed"},
	43:  {Ignore, "a program's channel was reset; the GPU itself goes on"},
	44:  {Ignore, "a program's context switch failed"},
	45:  {Ignore, "a program's channels were torn down, most often after another XID or a kill"},
	60:  {Ignore, "a program's security engine channel failed"},
	65:  {Ignore, "a program's video encoder channel failed"},
	66:  {Ignore, "the driver refused a program's access"},
	67:  {Ignore, "the driver refused a program's access"},
	68:  {Ignore, "a program's video decoder channel failed"},
	69:  {Ignore, "a program used a graphics class wrongly"},
	70:  {Ignore, "a program's copy engine channel failed"},
	71:  {Ignore, "a program's copy engine channel failed"},
	72:  {Ignore, "a program's copy engine channel failed"},
	75:  {Ignore, "a program's copy engine channel failed"},
	76:  {Ignore, "a program's copy engine channel failed"},
	77:  {Ignore, "a program's copy engine channel failed"},
	80:  {Ignore, "a program's command stream was corrupted on its way"},
	82:  {Ignore, "a program's video channel failed"},
	83:  {Ignore, "a program's video channel failed"},
	84:  {Ignore, "a program's video channel failed"},
	85:  {Ignore, "a program's copy engine channel failed"},
	86:  {Ignore, "a program's video channel failed"},
	88:  {Ignore, "a program's video channel failed"},
	89:  {Ignore, "a program's video channel failed"},
	96:  {Ignore, "a program's video channel failed"},
	97:  {Ignore, "a program's video channel failed"},
	98:  {Ignore, "a program's video channel failed"},
	99:  {Ignore, "a program's image decoder channel failed"},
	100: {Ignore, "a program's image decoder channel failed"},
	101: {Ignore, "a program's image decoder channel failed"},
	102: {Ignore, "a program's image decoder channel failed"},
	103: {Ignore, "a program's image decoder channel failed"},
	104: {Ignore, "a program's image decoder channel failed"},
	105: {Ignore, "a program's image decoder channel failed"},
	106: {Ignore, "a test message"},
	107: {Ignore, "a test message"},
	108: {Ignore, "driver notice; the catalogue says: ignore"},
	126: {Ignore, "a program's copy engine channel failed"},
	127: {Ignore, "a program's copy engine channel failed"},
	128: {Ignore, "a program's copy engine channel failed"},
	129: {Ignore, "a program's copy engine channel failed"},
	130: {Ignore, "a program's copy engine channel failed"},
	131: {Ignore, "a program's copy engine channel failed"},
	132: {Ignore, "a program's copy engine channel failed"},
	133: {Ignore, "a program's copy engine channel failed"},
	134: {Ignore, "a program's copy engine channel failed"},
	135: {Ignore, "a program's copy engine channel failed"},
	137: {Ignore, "a program accessed another GPU's memory without the right to (NVLink fault)"},
	139: {Ignore, "a program's optical flow channel failed"},
	141: {Ignore, "driver notice; the catalogue says: ignore"},

	// Memory errors that the GPU dealt with by itself, and those that the
	// catalogue ignores because a reset does not help. Errors are contained
	// from Ampere on: 94 kills the programs that touched the bad memory and
	// nobody else, and 63 says that a spare row takes over at the next reset,
	// until when the bad page is not handed out ("a pending remapping won't
	// affect future work", nvmlDeviceGetRemappedRows). Several in a row are
	// another matter, hence warn and not ignore.
	63:  {Warn, "a bad memory row or page was put down for replacement at the next reset"},
	92:  {Warn, "many correctable memory errors"},
	94:  {Warn, "an uncorrectable memory error, contained to the programs that met it"},
	121: {Ignore, "the link between CPU and GPU corrected an error"},
	93:  {Warn, "the board's configuration memory is worn out"},
	157: {Warn, "a resource of the GPU could not be retired"},
	160: {Warn, "a memory channel was retired"},
	161: {Warn, "a memory channel could not be retired"},
	171: {Warn, "where the memory error of XID 48 or 94 lies (DRAM)"},
	172: {Warn, "where the memory error of XID 48 or 94 lies (SRAM)"},
	// 154 says that the recommended recovery action changed, up or down. The
	// action itself is read with every reading and decides (see Reading).
	154: {Ignore, "the driver's recommended recovery action changed"},

	// Memory errors that may have spread. 48 is an uncorrectable error: before
	// Ampere nothing contains it, and from Ampere on 94 or 95 says whether it
	// was contained; the catalogue sends people into a workflow that ends with
	// a reset unless 94 came with it. We ask for the reset.
	48:  {UntilReset, "an uncorrectable memory error (double bit ECC)"},
	64:  {UntilReset, "a bad memory row or page could not be put down for replacement"},
	95:  {UntilReset, "an uncorrectable memory error that was not contained"},
	140: {UntilReset, "an uncorrectable ECC error that the GPU did not recover from"},
	156: {UntilReset, "a resource of the GPU was retired, which takes a reset"},

	// The GPU or its firmware stands still.
	46:  {UntilReset, "the GPU stopped processing"},
	61:  {UntilReset, "the GPU's power controller met an internal error"},
	62:  {UntilReset, "the GPU's power controller halted"},
	79:  {UntilReset, "the GPU has fallen off the bus"},
	110: {UntilReset, "the GPU detected a security fault"},
	109: {UntilReset, "a context switch timed out; the catalogue says: reset"},
	119: {UntilReset, "the GPU's system processor (GSP) does not answer the driver"},
	120: {UntilReset, "the GPU's system processor (GSP) met an error"},
	136: {UntilReset, "an NVLink could not be trained"},
	143: {UntilReset, "the GPU could not be initialised"},
	151: {UntilReset, "the rotation of the GPU's encryption key failed"},
	158: {UntilReset, "the GPU met a fatal timeout"},

	// Links. One error on a link is often transient and is retried by the
	// hardware; a GPU whose links keep failing must not get multi-GPU work, so
	// it pauses, and pauses longer each time.
	73:  {Pause, "NVLink was reported in trouble"},
	74:  {Pause, "an NVLink error"},
	144: {Pause, "an NVLink error (SAW)"},
	145: {Pause, "an NVLink error (RLW)"},
	146: {Pause, "an NVLink error (TLW)"},
	147: {Pause, "an NVLink error (TREX)"},
	148: {Pause, "an NVLink error (power control)"},
	149: {Pause, "an NVLink error (NETIR)"},
	150: {Pause, "an NVLink error (MSE)"},
	// The one link error for which the catalogue asks for a reset outright.
	155: {UntilReset, "an NVLink error found in software"},

	// The power supply or the board: nothing that a program does.
	54:  {UntilReset, "the auxiliary power is not connected"},
	78:  {Pause, "the virtual GPU manager failed to start"},
	81:  {Ignore, "a VGA error"},
	122: {Warn, "the board's flash memory could not be read"},
	123: {Warn, "the board's flash memory could not be written"},
}
