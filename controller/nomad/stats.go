package nomad

import (
	"context"
	"math"
	"time"

	"github.com/hashicorp/nomad/api"
)

// statMemory is the device plugin's name (device-plugin/stats.go, StatMemory) of the
// memory in use on a GPU.
const statMemory = "Memory state"

// Sample is a GPU's memory as the node's device plugin saw it.
type Sample struct {
	// Used is how many bytes are in use on the whole GPU, whoever uses them; below 0 where
	// the GPU does not tell.
	Used int64
	// At is when that was, by the node's clock.
	At time.Time
}

// GPUMemory returns the newest sample of each GPU of a node, by UUID. Nomad's client takes
// one every telemetry.collection_interval, 1 s by default. The token needs node:read.
func (c *Client) GPUMemory(ctx context.Context, node string) (map[string]Sample, error) {
	var stats *api.HostStats
	err := c.callUnder(ctx, c.stats, "read the statistics of node "+node, func(ctx context.Context) error {
		var err error
		stats, err = c.api.Nodes().Stats(node, c.read(ctx))
		return err
	})
	if err != nil {
		return nil, err
	}
	out := map[string]Sample{}
	for _, g := range stats.DeviceStats {
		if g == nil || g.Vendor != deviceVendor || g.Type != deviceType {
			continue
		}
		for id, d := range g.InstanceStats {
			uuid, _, ok := splitSeat(id)
			if !ok || d == nil {
				continue
			}
			s := Sample{Used: usedBytes(d), At: d.Timestamp}
			// Every seat shows the whole GPU.
			if had, there := out[uuid]; !there || s.At.After(had.At) {
				out[uuid] = s
			}
		}
	}
	return out, nil
}

// usedBytes reads the memory in use, -1 where it is not told.
func usedBytes(d *api.DeviceStats) int64 {
	var v *api.StatValue
	if d.Stats != nil {
		v = d.Stats.Attributes[statMemory]
	}
	if v == nil {
		v = d.Summary // the plugin's summary is the memory
	}
	if v == nil {
		return -1
	}
	factor, ok := byteUnits[v.Unit]
	switch {
	case !ok || v.StringVal != nil:
		return -1
	case v.IntNumeratorVal != nil && *v.IntNumeratorVal >= 0 && float64(*v.IntNumeratorVal)*factor < math.MaxInt64:
		return *v.IntNumeratorVal * int64(factor)
	case v.FloatNumeratorVal != nil && *v.FloatNumeratorVal >= 0 && *v.FloatNumeratorVal*factor < math.MaxInt64:
		return int64(*v.FloatNumeratorVal * factor)
	}
	return -1
}
