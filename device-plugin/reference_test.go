package deviceplugin

import (
	"fmt"
	"go/ast"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/prometheus/client_golang/prometheus"

	"remuda/device-plugin/ledger"
	"remuda/internal/testkit/reference"
)

// declared are the descriptions of the collector, which declares none beforehand.
type declared struct {
	collector
	descs []*prometheus.Desc
}

func (d declared) Describe(ch chan<- *prometheus.Desc) {
	for _, one := range d.descs {
		ch <- one
	}
}

func TestReferenceMetrics(t *testing.T) {
	var d declared
	reference.Source(t, "device-plugin").Inspect(func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if fn, ok := call.Fun.(*ast.Ident); !ok || fn.Name != "describe" {
			return true
		}
		var args []string
		for _, a := range call.Args {
			text, _ := strconv.Unquote(a.(*ast.BasicLit).Value)
			args = append(args, text)
		}
		d.descs = append(d.descs, describe(args[0], args[1], args[2:]...))
		return true
	})
	reference.Section(t, "metrics.md", "device", "## Device plugin\n\nAt the address in the setting `metrics` of the plugin.\n\n"+
		reference.Metrics(t, newReservations(), &d))
}

func TestReferenceStats(t *testing.T) {
	one := int64(1)
	sample := Sample{MemoryUsedMiB: &one, UtilizationPercent: &one, PowerWatts: &one, TemperatureCelsius: &one, MemoryUtilizationPercent: &one, CoreClockMHz: &one, MemoryClockMHz: &one,
		BAR1UsedMiB: &one, EncoderPercent: &one, DecoderPercent: &one, ECCErrorsL1: &one, ECCErrorsL2: &one, ECCErrorsMemory: &one}
	stats := seatStats(GPU{UUID: "GPU-1", Seats: 1, Simulated: true}, sample, []ledger.State{{GPU: "GPU-1", Tag: "TAG"}, {GPU: "GPU-1", Tag: "BAD", Err: "x"}}, time.Time{})
	var rows [][]string
	var list func(prefix string, o *structs.StatObject)
	list = func(prefix string, o *structs.StatObject) {
		for _, name := range slices.Sorted(maps.Keys(o.Attributes)) {
			v := o.Attributes[name]
			rows = append(rows, []string{reference.Code(prefix + name), v.Unit, reference.Sentence(v.Desc)})
		}
		for _, name := range slices.Sorted(maps.Keys(o.Nested)) {
			inner := prefix + name + " / "
			if name == "BAD" || name == "TAG" {
				inner = prefix + "TAG / "
			}
			list(inner, o.Nested[name])
		}
	}
	list("", stats.Stats)
	reference.Section(t, "metrics.md", "device stats", fmt.Sprintf("### Nomad's device statistics\n\nWhat `nomad node status -stats` shows of each seat of a GPU; `TAG` is a tag of the GPU memory service.\n\n%s",
		reference.Table([]string{"Statistic", "Unit", "Meaning"}, rows)))
}
