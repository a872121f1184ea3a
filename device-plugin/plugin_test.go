package deviceplugin_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/stretchr/testify/require"

	deviceplugin "remuda/device-plugin"
	"remuda/internal/testkit/devicetest"
	"remuda/internal/testkit/proclog"
)

// configured returns a plugin over src with the given config block.
// configured is a plugin with two seats for each GPU, unless body begins with another number.
func configured(t testing.TB, src deviceplugin.Source, body string) *deviceplugin.Plugin {
	t.Helper()
	p, err := deviceplugin.New(deviceplugin.Config{
		Logger: hclog.NewNullLogger(),
		Open:   func(deviceplugin.Settings, hclog.Logger) (deviceplugin.Source, error) { return src, nil },
	})
	require.NoError(t, err)
	schema, err := p.ConfigSchema()
	require.NoError(t, err)
	if !strings.HasPrefix(strings.TrimSpace(body), "seats") {
		body = "seats = 2\n" + body
	}
	require.NoError(t, p.SetConfig(&base.Config{PluginConfig: devicetest.Encode(t, schema, body)}))
	return p
}

func h100(uuid, bus string) deviceplugin.GPU {
	return deviceplugin.GPU{
		UUID: uuid, Model: "NVIDIA H100 80GB HBM3", MemoryMiB: 81559, ComputeCapability: 9,
		Architecture: "hopper", DriverVersion: "570.86.15", CUDAVersion: "12.8",
		PowerLimitWatts: 700, PCIBusID: bus, BAR1MiB: 131072, PCIBandwidthMBps: 65536, DisplayState: "0", PersistenceMode: "1",
	}
}

func sick(g deviceplugin.GPU, reason string) deviceplugin.GPU {
	g.Unhealthy = reason
	return g
}

// health lists device IDs with their reason, as "" for healthy ones.
func health(resp *device.FingerprintResponse) map[string]string {
	out := map[string]string{}
	for _, g := range resp.Devices {
		for _, d := range g.Devices {
			if d.Healthy != (d.HealthDesc == "") {
				out[d.ID] = "inconsistent health"
				continue
			}
			out[d.ID] = d.HealthDesc
		}
	}
	return out
}

func TestNewNamesEveryMissingField(t *testing.T) {
	_, err := deviceplugin.New(deviceplugin.Config{})
	require.ErrorContains(t, err, "Logger")
	require.ErrorContains(t, err, "Open")
}

func TestPluginInfo(t *testing.T) {
	info, err := configured(t, &devicetest.Source{}, "").PluginInfo()
	require.NoError(t, err)
	require.Equal(t, base.PluginTypeDevice, info.Type)
	require.Equal(t, "remuda-device", info.Name)
	require.Equal(t, []string{"v0.1.0"}, info.PluginApiVersions)
}

func TestNothingWorksBeforeSetConfig(t *testing.T) {
	p, err := deviceplugin.New(deviceplugin.Config{
		Logger: hclog.NewNullLogger(),
		Open:   func(deviceplugin.Settings, hclog.Logger) (deviceplugin.Source, error) { return nil, nil },
	})
	require.NoError(t, err)
	_, err = p.Fingerprint(t.Context())
	require.ErrorContains(t, err, "SetConfig")
	_, err = p.Stats(t.Context(), time.Second)
	require.ErrorContains(t, err, "SetConfig")
	_, err = p.Reserve([]string{"GPU-1#0"})
	require.ErrorContains(t, err, "SetConfig")
}

func TestFingerprintGroupsAndAttributes(t *testing.T) {
	inClique := func(g deviceplugin.GPU, clique string) deviceplugin.GPU { g.Clique = clique; return g }
	src := &devicetest.Source{}
	a100 := deviceplugin.GPU{UUID: "GPU-a", Model: "NVIDIA A100-SXM4-80GB", MemoryMiB: 81920, Simulated: true, Seats: 3}
	src.Set(
		inClique(h100("GPU-4", "00000000:4B:00.0\x00\x00"), "1"),
		inClique(h100("GPU-3", "0000:3B:00.0"), "0"),
		inClique(h100("GPU-2", "2b:00.0"), "0"),
		a100,
	)
	p := configured(t, src, `ignored_gpu_ids = ["GPU-ignored"]`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ch, err := p.Fingerprint(ctx)
	require.NoError(t, err)
	resp := <-ch
	require.NoError(t, resp.Error)
	require.Len(t, resp.Devices, 3)
	for _, g := range resp.Devices {
		require.NoError(t, g.Validate())
		require.Equal(t, "nvidia", g.Vendor)
		require.Equal(t, "gpu", g.Type)
	}

	a, c0, c1 := resp.Devices[0], resp.Devices[1], resp.Devices[2]
	require.Equal(t, "NVIDIA A100-SXM4-80GB", a.Name)
	require.Equal(t, "NVIDIA H100 80GB HBM3 (clique 0)", c0.Name)
	require.Equal(t, "NVIDIA H100 80GB HBM3 (clique 1)", c1.Name)

	require.Equal(t, []*device.Device{
		{ID: "GPU-2#0", Healthy: true, HwLocality: &device.DeviceLocality{PciBusID: "0000:2b:00.0"}},
		{ID: "GPU-2#1", Healthy: true, HwLocality: &device.DeviceLocality{PciBusID: "0000:2b:00.0"}},
		{ID: "GPU-3#0", Healthy: true, HwLocality: &device.DeviceLocality{PciBusID: "0000:3b:00.0"}},
		{ID: "GPU-3#1", Healthy: true, HwLocality: &device.DeviceLocality{PciBusID: "0000:3b:00.0"}},
	}, c0.Devices)
	require.Equal(t, "0000:4b:00.0", c1.Devices[0].HwLocality.PciBusID)
	require.Len(t, a.Devices, 3)
	require.Nil(t, a.Devices[0].HwLocality)

	require.Equal(t, map[string]*structs.Attribute{
		"model":              structs.NewStringAttribute("NVIDIA H100 80GB HBM3"),
		"memory":             structs.NewIntAttribute(81559, "MiB"),
		"compute_capability": structs.NewFloatAttribute(9, ""),
		"architecture":       structs.NewStringAttribute("hopper"),
		"driver_version":     structs.NewStringAttribute("570.86.15"),
		"cuda_version":       structs.NewStringAttribute("12.8"),
		"power":              structs.NewIntAttribute(700, "W"),
		"seats":              structs.NewIntAttribute(2, ""),
		"nvlink_clique":      structs.NewStringAttribute("0"),
		"simulated":          structs.NewBoolAttribute(false),
		"gms":                structs.NewBoolAttribute(true),
		"uuids":              structs.NewStringAttribute("GPU-2,GPU-3"),
		"bar1":               structs.NewIntAttribute(131072, "MiB"),
		"pci_bandwidth":      structs.NewIntAttribute(65536, "MB/s"),
		"display_state":      structs.NewStringAttribute("0"),
		"persistence_mode":   structs.NewStringAttribute("1"),
	}, c0.Attributes)
	require.Equal(t, map[string]*structs.Attribute{
		"model":     structs.NewStringAttribute("NVIDIA A100-SXM4-80GB"),
		"memory":    structs.NewIntAttribute(81920, "MiB"),
		"seats":     structs.NewIntAttribute(3, ""),
		"simulated": structs.NewBoolAttribute(true),
		"gms":       structs.NewBoolAttribute(true),
		"uuids":     structs.NewStringAttribute("GPU-a"),
	}, a.Attributes)

	want, ok := c0.Attributes["memory"].Compare(structs.ParseAttribute("40 GiB"))
	require.True(t, ok && want > 0, "a job's constraint on memory compares across units")
}

// A group has one set of attributes, so it must not promise more than its
// smallest GPU has.
func TestFingerprintGroupPromisesTheLeast(t *testing.T) {
	src := &devicetest.Source{}
	small := h100("GPU-2", "0000:02:00.0")
	small.MemoryMiB, small.Seats, small.ComputeCapability = 1000, 1, 8
	src.Set(h100("GPU-1", "0000:01:00.0"), small)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ch, err := configured(t, src, "").Fingerprint(ctx)
	require.NoError(t, err)
	attrs := (<-ch).Devices[0].Attributes
	require.Equal(t, structs.NewIntAttribute(1000, "MiB"), attrs["memory"])
	require.Equal(t, structs.NewIntAttribute(1, ""), attrs["seats"])
	require.Equal(t, structs.NewFloatAttribute(8, ""), attrs["compute_capability"])
}

func TestFingerprintLeavesOutWhatItCannotName(t *testing.T) {
	src := &devicetest.Source{}
	src.Set(h100("GPU-1", "0000:01:00.0"), h100("GPU-1", "0000:02:00.0"), h100("GPU#2", ""), h100("", ""),
		h100("GPU-ignored", "0000:03:00.0"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ch, err := configured(t, src, `ignored_gpu_ids = ["GPU-ignored"]`).Fingerprint(ctx)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"GPU-1#0": "", "GPU-1#1": ""}, health(<-ch))
}

func TestFingerprintStream(t *testing.T) {
	g1, g2 := h100("GPU-1", "0000:01:00.0"), h100("GPU-2", "0000:02:00.0")
	const period = time.Second
	steps := []struct {
		name string
		do   func(*devicetest.Source)
		// after is how long the change may take; a period and a half unless it is set.
		after time.Duration
		want  map[string]string // nil: nothing is sent
	}{
		{name: "nothing changes", do: func(*devicetest.Source) {}},
		{name: "a GPU falls ill", do: func(s *devicetest.Source) { s.Set(g1, sick(g2, "XID 79")) },
			want: map[string]string{"GPU-1#0": "", "GPU-2#0": "XID 79"}},
		{name: "the reason changes", do: func(s *devicetest.Source) { s.Set(g1, sick(g2, "XID 48")) },
			want: map[string]string{"GPU-1#0": "", "GPU-2#0": "XID 48"}},
		{name: "the order of the list changes", do: func(s *devicetest.Source) { s.Set(sick(g2, "XID 48"), g1) }},
		{name: "the source fails", do: func(s *devicetest.Source) { s.Fail(errors.New("driver reset")) },
			want: map[string]string{"GPU-1#0": "the GPUs cannot be read: driver reset", "GPU-2#0": "XID 48"}},
		{name: "it keeps failing", do: func(*devicetest.Source) {}},
		{name: "it fails otherwise", do: func(s *devicetest.Source) { s.Fail(errors.New("library gone")) },
			want: map[string]string{"GPU-1#0": "the GPUs cannot be read: library gone", "GPU-2#0": "XID 48"}},
		{name: "it recovers", do: func(s *devicetest.Source) { s.Set(g1, g2) },
			want: map[string]string{"GPU-1#0": "", "GPU-2#0": ""}},
		{name: "it hangs", do: func(s *devicetest.Source) { s.Hang() }, after: 12 * time.Second,
			want: map[string]string{
				"GPU-1#0": "the GPUs cannot be read: context deadline exceeded",
				"GPU-2#0": "the GPUs cannot be read: context deadline exceeded"}},
		{name: "it wakes up", do: func(s *devicetest.Source) { s.Set(g1, g2) }, after: 12 * time.Second,
			want: map[string]string{"GPU-1#0": "", "GPU-2#0": ""}},
		{name: "a GPU goes", do: func(s *devicetest.Source) { s.Set(g2) }, want: map[string]string{"GPU-2#0": ""}},
		{name: "the last GPU goes", do: func(s *devicetest.Source) { s.Set() }, want: map[string]string{}},
		{name: "a GPU comes", do: func(s *devicetest.Source) { s.Set(g1) }, want: map[string]string{"GPU-1#0": ""}},
	}
	synctest.Test(t, func(t *testing.T) {
		src := &devicetest.Source{}
		src.Set(g1, g2)
		p := configured(t, src, `
			seats = 1
			fingerprint_period = "1s"`)
		ctx, cancel := context.WithCancel(t.Context())
		ch, err := p.Fingerprint(ctx)
		require.NoError(t, err)
		first := <-ch
		require.Equal(t, map[string]string{"GPU-1#0": "", "GPU-2#0": ""}, health(first))
		for _, step := range steps {
			step.do(src)
			after := max(step.after, period*3/2)
			select {
			case resp, open := <-ch:
				require.True(t, open, step.name)
				require.NoError(t, resp.Error, step.name)
				require.NotNil(t, step.want, "%s: sent %v", step.name, health(resp))
				require.Equal(t, step.want, health(resp), step.name)
			case <-time.After(after):
				require.Nil(t, step.want, "%s: nothing was sent", step.name)
			}
		}
		cancel()
		_, open := <-ch
		require.False(t, open, "the stream ends with its context")
	})
}

// A GPU that cannot be published is logged as a warning once, and again when it comes back, not in every period.
func TestProblemsAreLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &devicetest.Source{}
		log := &proclog.Buffer{}
		p, err := deviceplugin.New(deviceplugin.Config{
			Logger: log.Logger(),
			Open:   func(deviceplugin.Settings, hclog.Logger) (deviceplugin.Source, error) { return src, nil },
		})
		require.NoError(t, err)
		schema, err := p.ConfigSchema()
		require.NoError(t, err)
		require.NoError(t, p.SetConfig(&base.Config{PluginConfig: devicetest.Encode(t, schema, `fingerprint_period = "1s"`)}))
		bad := []deviceplugin.GPU{h100("GPU-1", ""), h100("GPU-1", ""), h100("GPU#2", "")}
		src.Set(bad...)
		ctx, cancel := context.WithCancel(t.Context())
		ch, err := p.Fingerprint(ctx)
		require.NoError(t, err)
		<-ch
		for i, gpus := range [][]deviceplugin.GPU{bad, bad[:1], bad} {
			src.Set(gpus...)
			time.Sleep(10 * time.Second)
			synctest.Wait()
			text := log.String()
			require.Equal(t, []int{2, 2, 4}[i], strings.Count(text, "[WARN]  remuda-device: invalid response of the GPU source"), text)
			require.Equal(t, []int{1, 1, 2}[i], strings.Count(text, "duplicate GPU-1"), text)
		}
		cancel()
		for range ch {
		}
	})
}

// A plugin that finds nothing must say so: Nomad waits for the first
// fingerprint before it asks for statistics.
func TestFingerprintStartsEmptyWhenTheSourceFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &devicetest.Source{}
		src.Fail(errors.New("no driver"))
		ctx, cancel := context.WithCancel(t.Context())
		ch, err := configured(t, src, "").Fingerprint(ctx)
		require.NoError(t, err)
		resp := <-ch
		require.NoError(t, resp.Error)
		require.Empty(t, resp.Devices)
		src.Set(h100("GPU-1", "0000:01:00.0"))
		require.Len(t, (<-ch).Devices, 1, "a driver that comes later is seen")
		cancel()
		_, open := <-ch
		require.False(t, open)
	})
}

func TestStreamsEndWhileNobodyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &devicetest.Source{}
		src.Set(h100("GPU-1", "0000:01:00.0"))
		p := configured(t, src, "")
		ctx, cancel := context.WithCancel(t.Context())
		_, err := p.Fingerprint(ctx)
		require.NoError(t, err)
		_, err = p.Stats(ctx, -1)
		require.NoError(t, err)
		synctest.Wait() // both are blocked on their first send
		cancel()
		// synctest.Test fails if a goroutine is left.
	})
}

func TestStats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g1, g2 := h100("GPU-1", "0000:01:00.0"), h100("GPU-2", "0000:02:00.0")
		g1.Simulated = true
		src := &devicetest.Source{}
		src.Set(g1, g2, h100("GPU-3", "0000:03:00.0"))
		num := func(n int64) *int64 { return &n }
		src.SetSamples(map[string]deviceplugin.Sample{
			"GPU-1":     {MemoryUsedMiB: num(1000), UtilizationPercent: num(50), PowerWatts: num(300), TemperatureCelsius: num(60)},
			"GPU-2":     {MemoryUsedMiB: num(7)},
			"GPU-other": {},
		})
		p := configured(t, src, "")
		ctx, cancel := context.WithCancel(t.Context())
		fp, err := p.Fingerprint(ctx)
		require.NoError(t, err)
		<-fp
		ch, err := p.Stats(ctx, time.Second)
		require.NoError(t, err)
		start := time.Now()
		resp := <-ch
		require.NoError(t, resp.Error)
		require.Len(t, resp.Groups, 1)
		group := resp.Groups[0]
		require.Equal(t, "nvidia/gpu/NVIDIA H100 80GB HBM3", group.Vendor+"/"+group.Type+"/"+group.Name)
		require.Len(t, group.InstanceStats, 4, "GPU-3 has no sample, GPU-other is unknown")
		one := group.InstanceStats["GPU-1#1"]
		require.Equal(t, start, one.Timestamp)
		require.EqualValues(t, 1000, *one.Summary.IntNumeratorVal)
		require.EqualValues(t, 81559, *one.Summary.IntDenominatorVal)
		require.Equal(t, "MiB", one.Summary.Unit)
		attrs := one.Stats.Attributes
		require.EqualValues(t, 50, *attrs["GPU utilization"].IntNumeratorVal)
		require.Nil(t, attrs["GPU utilization"].IntDenominatorVal)
		require.EqualValues(t, 300, *attrs["Power usage"].IntNumeratorVal)
		require.EqualValues(t, 700, *attrs["Power usage"].IntDenominatorVal)
		require.EqualValues(t, 60, *attrs["Temperature"].IntNumeratorVal)
		require.True(t, *attrs["Simulated"].BoolVal)
		two := group.InstanceStats["GPU-2#0"].Stats.Attributes
		require.Equal(t, "N/A", *two["Temperature"].StringVal)
		require.NotContains(t, two, "Simulated")

		<-ch
		require.Equal(t, time.Second, time.Since(start), "every interval")
		src.Fail(errors.New("no answer"))
		<-ch // may have been sampled before
		resp = <-ch
		require.NoError(t, resp.Error)
		require.Empty(t, resp.Groups, "Nomad would go on to show the old values")
		src.SetSamples(map[string]deviceplugin.Sample{"GPU-1": {}})
		<-ch
		require.Len(t, (<-ch).Groups, 1, "the stream goes on after a fault")
		cancel()
		for range fp {
		}
		_, open := <-ch
		require.False(t, open)
	})
}
