package capacity

import (
	"fmt"
	"math"

	"remuda/autoscaler-plugin/enginemetrics"
)

// Class is what an entry of Input.Replicas was taken for.
type Class uint8

// The classes.
const (
	// OK has room.
	OK Class = iota
	// Saturated: KV usage or queue is at its threshold or above.
	Saturated
	// Draining takes no new requests: its load counts, its room does not.
	Draining
	// Unknown: KV usage or queue length is absent.
	Unknown
	// Stale: its metrics are too old, or too far ahead of the clock.
	Stale
	// Impossible: a value that cannot be, as NaN or a negative one.
	Impossible
	// Duplicate: another entry of the same replica. The replica counts once, with the
	// highest values among its entries that can be used.
	Duplicate
)

var classNames = [...]string{"ok", "saturated", "draining", "unknown", "stale", "impossible", "duplicate"}

// String is the class's word in an answer.
func (c Class) String() string {
	if int(c) < len(classNames) {
		return classNames[c]
	}
	return fmt.Sprintf("Class(%d)", uint8(c))
}

// classify looks at a replica by itself: OK stands for usable here.
func classify(r *Replica, staleAfter float64) Class {
	kv, queue := r.KVCacheUsage.Raw(), r.QueueLength.Raw()
	switch {
	case !(math.Abs(r.AgeSeconds) <= staleAfter):
		return Stale
	case r.KVCacheUsage.IsZero() || r.QueueLength.IsZero():
		if !r.KVCacheUsage.IsZero() && !possibleKV(kv) || !r.QueueLength.IsZero() && !possibleQueue(queue) {
			return Impossible
		}
		return Unknown
	case !possibleKV(kv) || !possibleQueue(queue):
		return Impossible
	}
	return OK
}

func possibleKV(x float64) bool { return x >= 0 && x <= 1 }

func possibleQueue(x float64) bool { return x >= 0 && x <= math.MaxFloat64 }

// explain says why a replica has its class.
func (c Class) explain(r *Replica, cfg *Config) string {
	kv, queue := r.KVCacheUsage, r.QueueLength
	switch c {
	case Saturated:
		return fmt.Sprintf("KV usage %s of %s, queue %s of %s", kv, enginemetrics.Text(cfg.KVCacheThreshold), queue, enginemetrics.Text(cfg.QueueLengthThreshold))
	case Draining:
		return "draining: its load counts, its spare capacity does not"
	case Unknown:
		switch {
		case kv.IsZero() && queue.IsZero():
			return "it reports no KV usage and no queue length"
		case kv.IsZero():
			return "it reports no KV usage"
		}
		return "it reports no queue length"
	case Stale:
		return fmt.Sprintf("its metrics are %s s old: must be at most %s s", enginemetrics.Text(r.AgeSeconds), enginemetrics.Text(cfg.StaleAfterSeconds))
	case Impossible:
		switch {
		case !kv.IsZero() && kv.Raw() > 1 && kv.Raw() <= 100:
			return fmt.Sprintf("KV usage is %s: must be 0 to 1 (divide a percentage by 100)", kv)
		case !kv.IsZero() && !possibleKV(kv.Raw()):
			return fmt.Sprintf("KV usage is %s: must be 0 to 1", kv)
		}
		return fmt.Sprintf("queue length is %s: must be 0 or more", queue)
	case Duplicate:
		return "duplicate entry of the same replica: it counts once"
	}
	return ""
}
