package cuda

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
)

// Device is a GPU that the driver shows.
type Device struct {
	// Ordinal is the driver's number, which CUDA_VISIBLE_DEVICES changes.
	Ordinal int
	// UUID is "GPU-" and five groups of hexadecimal digits.
	UUID string
	// Name is the product's.
	Name string
	// Memory is in bytes.
	Memory uint64

	device int32
}

// Devices lists the GPUs that the driver shows. library is the path of the
// driver's library; empty for DefaultLibrary.
func Devices(library string) ([]Device, error) {
	d, err := load(library)
	if err != nil {
		return nil, fmt.Errorf("list GPUs: %w", err)
	}
	list, err := d.devices()
	if err != nil {
		return nil, fmt.Errorf("list GPUs: %w", err)
	}
	return list, nil
}

func (d *driver) devices() ([]Device, error) {
	var count int32
	if err := d.check("cuDeviceGetCount", d.DeviceGetCount(&count)); err != nil {
		return nil, err
	}
	list := make([]Device, 0, count)
	for i := range count {
		v := Device{Ordinal: int(i)}
		if err := d.check("cuDeviceGet", d.DeviceGet(&v.device, i)); err != nil {
			return nil, err
		}
		var uuid [16]byte
		if err := d.check("cuDeviceGetUuid_v2", d.DeviceGetUUID(&uuid, v.device)); err != nil {
			return nil, err
		}
		v.UUID = formatUUID(uuid)
		name := make([]byte, 256)
		if err := d.check("cuDeviceGetName", d.DeviceGetName(&name[0], int32(len(name)), v.device)); err != nil {
			return nil, err
		}
		before, _, _ := bytes.Cut(name, []byte{0})
		v.Name = string(before)
		var total uintptr
		if err := d.check("cuDeviceTotalMem_v2", d.DeviceTotalMem(&total, v.device)); err != nil {
			return nil, err
		}
		v.Memory = uint64(total)
		list = append(list, v)
	}
	return list, nil
}

// find returns the device with the UUID.
func (d *driver) find(uuid string) (Device, error) {
	want, err := parseUUID(uuid)
	if err != nil {
		return Device{}, err
	}
	list, err := d.devices()
	if err != nil {
		return Device{}, err
	}
	var seen []string
	for _, v := range list {
		if got, err := parseUUID(v.UUID); err == nil && got == want {
			return v, nil
		}
		seen = append(seen, v.UUID)
	}
	return Device{}, fmt.Errorf("%w: %s; it shows %d: %s", ErrNoGPU, uuid, len(seen), strings.Join(seen, ", "))
}

func formatUUID(u [16]byte) string {
	h := hex.EncodeToString(u[:])
	return "GPU-" + h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// parseUUID reads a UUID with the prefix of a GPU or of a MIG instance.
func parseUUID(s string) (u [16]byte, err error) {
	prefix, rest, _ := strings.Cut(s, "-")
	raw, err := hex.DecodeString(strings.ReplaceAll(rest, "-", ""))
	if prefix != "GPU" && prefix != "MIG" || err != nil || len(raw) != len(u) {
		return u, fmt.Errorf("GPU is %q: must be a UUID such as GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", s)
	}
	return [16]byte(raw), nil
}
