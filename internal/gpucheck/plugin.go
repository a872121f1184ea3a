package gpucheck

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hcldec"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/nomad/helper/pluginutils/hclspecutils"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/zclconf/go-cty/cty/msgpack"
	"golang.org/x/sys/unix"

	deviceplugin "remuda/device-plugin"
	"remuda/device-plugin/gms/backend/cuda"
)

// memoryApart is how far NVML and CUDA may be apart about a GPU's memory: the
// driver keeps some for itself that CUDA does not count.
const memoryApart = 0.05

// noneTime is how long to wait for NVML where CUDA works already.
const noneTime = 5 * time.Second

// checkPlugin: the device plugin, started as Nomad starts it, publishes the GPUs
// that the CUDA driver shows.
func (r *run) checkPlugin(ctx context.Context) {
	c := &check{r, "1 device plugin"}
	if r.cfg.Backend == backendHost {
		c.skip("the plugin's fingerprint and statistics agree with the CUDA driver", "the host backend has no GPU")
		return
	}
	var p *pluginProcess
	defer func() { p.close() }()
	var published map[string]*device.DeviceGroup
	if c.step(ctx, "the plugin's fingerprint agrees with the CUDA driver", startTime, func(ctx context.Context) (_ seen, err error) {
		if p, err = r.plugin(); err != nil {
			return seen{}, err
		}
		stream, err := p.device.Fingerprint(ctx)
		if err != nil {
			return seen{}, fmt.Errorf("fingerprint: %w", err)
		}
		var none error
		for {
			resp, err := next(ctx, stream)
			if err != nil && none != nil {
				return seen{}, fmt.Errorf("%w: %w: %s", none, err, p.complaint())
			}
			if err != nil {
				return seen{}, fmt.Errorf("fingerprint: %w", err)
			}
			if resp.Error != nil {
				return seen{}, fmt.Errorf("fingerprint: %w", resp.Error)
			}
			if len(resp.Devices) > 0 {
				published = byGPU(resp.Devices)
				return r.compare(published)
			}
			// No devices says that NVML cannot be used now, and another message
			// comes when it can.
			if none == nil {
				none = errors.New("the plugin publishes no GPU")
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, noneTime)
				defer cancel()
			}
		}
	}) != nil {
		return
	}
	_ = c.step(ctx, "the plugin's statistics are plausible", quickTime, func(ctx context.Context) (seen, error) {
		stream, err := p.device.Stats(ctx, time.Second)
		if err != nil {
			return seen{}, fmt.Errorf("statistics: %w", err)
		}
		resp, err := next(ctx, stream)
		if err == nil {
			err = resp.Error
		}
		if err != nil {
			return seen{}, fmt.Errorf("statistics: %w", err)
		}
		return r.plausible(resp.Groups)
	})
}

// pluginProcess is a remuda-device that runs as a plugin.
type pluginProcess struct {
	client *plugin.Client
	device device.DevicePlugin
	log    *os.File
}

// close ends the plugin, and with it its NVML worker.
func (p *pluginProcess) close() {
	if p != nil {
		p.client.Kill()
		p.log.Close()
	}
}

// complaint is the last error that the plugin logged.
func (p *pluginProcess) complaint() string {
	raw, err := os.ReadFile(p.log.Name())
	if err != nil {
		return err.Error()
	}
	last := "its log has no error"
	for line := range strings.Lines(string(raw)) {
		if strings.Contains(line, "[ERROR]") {
			last = strings.TrimSpace(line)
		}
	}
	return last
}

// plugin starts remuda-device as Nomad does and configures it.
func (r *run) plugin() (*pluginProcess, error) {
	cmd := exec.Command(r.device)
	cmd.Env = []string{markEnv + "=" + r.mark} // go-plugin adds ours
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	log, err := os.Create(filepath.Join(r.logs, "1-remuda-device.log"))
	if err != nil {
		return nil, fmt.Errorf("start remuda-device: %w", err)
	}
	p := &pluginProcess{log: log, client: plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig: base.Handshake,
		Plugins: map[string]plugin.Plugin{
			base.PluginTypeBase:   &base.PluginBase{},
			base.PluginTypeDevice: &device.PluginDevice{},
		},
		Cmd:              cmd,
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		StartTimeout:     startTime,
		Logger:           hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Debug}),
		UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: r.dir},
	})}
	if p.device, err = r.dispense(p.client); err != nil {
		p.close()
		return nil, fmt.Errorf("start remuda-device as a plugin: %w", err)
	}
	return p, nil
}

func (r *run) dispense(client *plugin.Client) (device.DevicePlugin, error) {
	rpc, err := client.Client()
	if err != nil {
		return nil, err
	}
	raw, err := rpc.Dispense(base.PluginTypeDevice)
	if err != nil {
		return nil, err
	}
	p, ok := raw.(device.DevicePlugin)
	if !ok {
		return nil, fmt.Errorf("it is a %T", raw)
	}
	schema, err := p.ConfigSchema()
	if err != nil {
		return nil, err
	}
	body := "fingerprint_period = \"1s\"\n"
	if r.cfg.NVMLLibrary != "" {
		body += fmt.Sprintf("nvml_library = %q\n", r.cfg.NVMLLibrary)
	}
	config, err := encode(schema, body)
	if err != nil {
		return nil, err
	}
	return p, p.SetConfig(&base.Config{ApiVersion: device.ApiVersion010, PluginConfig: config})
}

// encode turns the body of a config block into what Nomad sends a plugin.
func encode(schema *hclspec.Spec, body string) ([]byte, error) {
	spec, diags := hclspecutils.Convert(schema)
	if !diags.HasErrors() {
		var file *hcl.File
		if file, diags = hclparse.NewParser().ParseHCL([]byte(body), "config.hcl"); !diags.HasErrors() {
			value, more := hcldec.Decode(file.Body, spec, &hcl.EvalContext{})
			if diags = more; !diags.HasErrors() {
				return msgpack.Marshal(value, value.Type())
			}
		}
	}
	return nil, fmt.Errorf("the plugin's config: %w", diags)
}

// next waits for a message of a stream.
func next[T any](ctx context.Context, stream <-chan T) (T, error) {
	var none T
	select {
	case v, open := <-stream:
		if !open {
			return none, io.ErrUnexpectedEOF
		}
		return v, nil
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// byGPU finds the group of each GPU.
func byGPU(groups []*device.DeviceGroup) map[string]*device.DeviceGroup {
	out := map[string]*device.DeviceGroup{}
	for _, g := range groups {
		for _, d := range g.Devices {
			uuid, _, _ := strings.Cut(d.ID, "#")
			out[uuid] = g
		}
	}
	return out
}

// compare holds what is published against what the CUDA driver shows. The plugin
// may know of more: CUDA_VISIBLE_DEVICES hides some from CUDA alone.
func (r *run) compare(published map[string]*device.DeviceGroup) (seen, error) {
	devices, err := cuda.Devices(r.cfg.CUDALibrary)
	if err != nil {
		return seen{}, err
	}
	var errs []error
	for _, d := range devices {
		g := published[d.UUID]
		if g == nil {
			errs = append(errs, fmt.Errorf("CUDA shows %s and the plugin publishes %s", d.UUID, strings.Join(slices.Sorted(maps.Keys(published)), ", ")))
			continue
		}
		nvml := float64(number(g.Attributes[deviceplugin.AttrMemory]) << 20)
		if apart := nvml/float64(d.Memory) - 1; apart > memoryApart || apart < -memoryApart {
			errs = append(errs, fmt.Errorf("%s has %s by NVML and %s by CUDA", d.UUID, amount(uint64(nvml)), amount(d.Memory)))
		}
		if name := text(g.Attributes[deviceplugin.AttrModel]); name != d.Name {
			errs = append(errs, fmt.Errorf("%s is %q by NVML and %q by CUDA", d.UUID, name, d.Name))
		}
		for _, one := range g.Devices {
			if uuid, _, _ := strings.Cut(one.ID, "#"); uuid == d.UUID && !one.Healthy {
				errs = append(errs, fmt.Errorf("seat %s is unhealthy: %s", one.ID, one.HealthDesc))
			}
		}
	}
	var said string
	if g := published[r.gpu]; g != nil {
		r.report.Driver, r.report.CUDA = text(g.Attributes[deviceplugin.AttrDriverVersion]), text(g.Attributes[deviceplugin.AttrCUDAVersion])
		var attrs []string
		for _, name := range slices.Sorted(maps.Keys(g.Attributes)) {
			attrs = append(attrs, name+" "+value(g.Attributes[name]))
		}
		said = fmt.Sprintf("%d GPU(s), %d seats; %s: %s", len(published), len(g.Devices), g.Name, strings.Join(attrs, ", "))
	}
	return note("%s", said), errors.Join(errs...)
}

// plausible holds the statistics of the GPU against the CUDA driver's figure.
func (r *run) plausible(groups []*device.DeviceGroupStats) (seen, error) {
	for _, g := range groups {
		for id, s := range g.InstanceStats {
			if uuid, _, _ := strings.Cut(id, "#"); uuid != r.gpu {
				continue
			}
			f := Figures{}
			var said []string
			for _, name := range slices.Sorted(maps.Keys(s.Stats.Attributes)) {
				v := s.Stats.Attributes[name]
				if v.IntNumeratorVal != nil {
					said = append(said, fmt.Sprintf("%s %d %s", name, *v.IntNumeratorVal, v.Unit))
					f[strings.ReplaceAll(strings.ToLower(name), " ", "_")] = float64(*v.IntNumeratorVal)
				}
			}
			out := seen{strings.Join(said, ", "), f}
			return out, r.plausibleUse(s.Stats.Attributes[deviceplugin.StatMemory])
		}
	}
	return seen{}, fmt.Errorf("the plugin has no statistics of %s", r.gpu)
}

func (r *run) plausibleUse(v *structs.StatValue) error {
	if v == nil || v.IntNumeratorVal == nil || v.IntDenominatorVal == nil {
		return errors.New("the plugin does not know how much memory is in use")
	}
	if *v.IntNumeratorVal < 0 || *v.IntNumeratorVal > *v.IntDenominatorVal {
		return fmt.Errorf("%d of %d MiB are in use", *v.IntNumeratorVal, *v.IntDenominatorVal)
	}
	if r.cfg.Meter != meterDriver {
		return nil // a fake driver does not know
	}
	used, err := r.meter.used()
	if err != nil {
		return err
	}
	apart := float64(*v.IntNumeratorVal<<20) - float64(used)
	if limit := memoryApart * float64(r.report.MemoryBytes); apart > limit || apart < -limit {
		return fmt.Errorf("%d MiB are in use by NVML and %s by CUDA", *v.IntNumeratorVal, amount(used))
	}
	return nil
}

func number(a *structs.Attribute) int64 {
	if a == nil || a.Int == nil {
		return 0
	}
	return *a.Int
}

func text(a *structs.Attribute) string {
	if a == nil || a.String == nil {
		return ""
	}
	return *a.String
}

// value is an attribute for people.
func value(a *structs.Attribute) string {
	switch {
	case a == nil:
		return "not known"
	case a.Int != nil:
		return strings.TrimSpace(fmt.Sprintf("%d %s", *a.Int, a.Unit))
	case a.Float != nil:
		return strings.TrimSpace(fmt.Sprintf("%g %s", *a.Float, a.Unit))
	case a.Bool != nil:
		return strconv.FormatBool(*a.Bool)
	default:
		return text(a)
	}
}
