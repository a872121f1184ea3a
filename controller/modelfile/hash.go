package modelfile

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"maps"
	"slices"
	"strconv"

	"remuda/controller/state"
)

// hashes fills in the hashes of the model and its variants. Each part is written
// with its name and length, so that no two different models look alike.
//
// A variant's hash is of what a running replica was made from, so its cost and the size of
// its weights, from which times are estimated, are not a part of it, and whether the
// replica is a pair is. A model's hash is of all that the file says.
func hashes(m *state.Model) {
	for i := range m.Variants {
		m.Variants[i].Hash = variantHash(m, &m.Variants[i])
	}
	d := digest{sha256.New()}
	d.text("model", m.Name)
	for _, v := range m.Variants {
		d.text("variant", v.Hash)
		d.text("cost", strconv.FormatFloat(v.Cost, 'g', -1, 64))
		d.set("weights", v.Weights)
	}
	d.number("min", int64(m.Min))
	d.number("max", int64(m.Max))
	if m.FileReplicas != nil {
		d.number("replicas", int64(*m.FileReplicas))
	}
	d.number("priority", int64(m.Priority))
	d.text("dedicated", strconv.FormatBool(m.Dedicated))
	d.text("failover", strconv.FormatBool(m.Failover))
	d.text("management", string(m.Management))
	d.number("idle.warm", int64(m.IdleWarm))
	d.number("idle.cold", int64(m.IdleCold))
	d.set("keep_warm", int64(m.KeepWarm))
	if u := m.Update; u != nil {
		d.number("update.surge", int64(u.Surge))
		if u.MinAvailable != nil {
			d.text("update.min_available", u.MinAvailable.String())
		}
	}
	if m.Continuation {
		d.text("continuation", "true")
	}
	if m.PassAuthorization {
		d.text("pass_authorization", "true")
	}
	d.set("queue.length", int64(m.Queue.Length))
	d.set("queue.wait", int64(m.Queue.Wait))
	d.set("queue.first_byte", int64(m.Queue.FirstByte))
	d.set("slo.ttft_p95", int64(m.SLO.TTFT))
	d.set("slo.itl_p95", int64(m.SLO.ITL))
	if p := m.Scaling; p != nil {
		d.text("scaling.strategy", p.Strategy)
		d.number("scaling.evaluation_interval", int64(p.Interval))
		for _, k := range slices.Sorted(maps.Keys(p.Settings)) {
			d.text("scaling.key", k)
			d.text("=", p.Settings[k])
		}
	}
	m.Hash = d.sum()
}

func variantHash(m *state.Model, v *state.Variant) string {
	d := digest{sha256.New()}
	d.text("model", m.Name)
	d.text("failover", strconv.FormatBool(m.Failover))
	d.text("name", v.Name)
	d.text("gpu.model", v.GPUModel)
	d.number("gpu.count", int64(v.GPUs))
	d.set("gpu.reach", int64(v.Reach))
	d.number("memory", v.Memory)
	d.number("host_memory", v.HostMemory)
	d.set("sleep_memory", v.SleepMemory)
	d.set("shared_memory", v.SharedMemory)
	d.number("slots", int64(v.Slots))
	d.text("engine", v.Engine)
	for _, token := range jobEssence(v.Job) {
		d.text("job", token)
	}
	for _, k := range slices.Sorted(maps.Keys(v.Vars)) {
		d.text("var", k)
		d.text("=", v.Vars[k])
	}
	return d.sum()
}

type digest struct{ hash.Hash }

func (d digest) text(name, value string) {
	fmt.Fprintf(d, "%s %d:%s\n", name, len(value), value)
}

func (d digest) number(name string, value int64) { d.text(name, strconv.FormatInt(value, 10)) }

// set writes a number that is not 0.
func (d digest) set(name string, value int64) {
	if value != 0 {
		d.number(name, value)
	}
}

// sum is 128 bits in hex: short enough for a table, long enough never to meet twice.
func (d digest) sum() string { return hex.EncodeToString(d.Sum(nil)[:16]) }
