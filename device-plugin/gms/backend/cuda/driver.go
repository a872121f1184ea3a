package cuda

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"

	"remuda/device-plugin/gms/backend"
)

// DefaultLibrary is what the NVIDIA driver installs, in the linker's path.
const DefaultLibrary = "libcuda.so.1"

var (
	// ErrNoDriver is wrapped where the driver's library cannot be loaded.
	ErrNoDriver = errors.New("there is no usable NVIDIA driver")
	// ErrNoGPU is wrapped where the driver does not show the GPU asked for.
	ErrNoGPU = errors.New("the CUDA driver does not list the GPU")
)

// Values of the driver API's enums.
const (
	success          = 0
	errorOutOfMemory = 2
	allocationPinned = 1
	handlePosixFD    = 1
	locationDevice   = 1
	granularityMin   = 0
	accessRead       = 1
	accessReadWrite  = 3
	initFlags        = 0
)

// location is CUmemLocation.
type location struct {
	kind int32
	id   int32
}

// allocationProp is CUmemAllocationProp: 32 bytes.
type allocationProp struct {
	kind        int32
	handleTypes int32
	location    location
	// win32 is a pointer that other systems use.
	win32 uintptr
	// flags are compressionType, gpuDirectRDMACapable, usage and four reserved bytes.
	flags [8]byte
}

// accessDesc is CUmemAccessDesc: 12 bytes.
type accessDesc struct {
	location location
	flags    int32
}

// Error is a call of the driver that failed.
type Error struct {
	// Function is the driver's, such as "cuMemCreate".
	Function string
	// Code is the CUresult, and Name what the driver calls it.
	Code int
	Name string
}

func (e *Error) Error() string { return fmt.Sprintf("%s: error %d (%s)", e.Function, e.Code, e.Name) }

// Is tells that CUDA_ERROR_OUT_OF_MEMORY is backend.ErrOutOfMemory.
func (e *Error) Is(target error) bool {
	return target == backend.ErrOutOfMemory && e.Code == errorOutOfMemory
}

// driver is the library's functions, by the names of its symbols.
type driver struct {
	Init                       func(flags uint32) int32                                                     `cuda:"cuInit"`
	GetErrorName               func(code int32, name **byte) int32                                          `cuda:"cuGetErrorName"`
	DeviceGetCount             func(count *int32) int32                                                     `cuda:"cuDeviceGetCount"`
	DeviceGet                  func(device *int32, ordinal int32) int32                                     `cuda:"cuDeviceGet"`
	DeviceGetUUID              func(uuid *[16]byte, device int32) int32                                     `cuda:"cuDeviceGetUuid_v2"`
	DeviceGetName              func(name *byte, length int32, device int32) int32                           `cuda:"cuDeviceGetName"`
	DeviceTotalMem             func(bytes *uintptr, device int32) int32                                     `cuda:"cuDeviceTotalMem_v2"`
	DevicePrimaryCtxRetain     func(ctx *uintptr, device int32) int32                                       `cuda:"cuDevicePrimaryCtxRetain"`
	DevicePrimaryCtxRelease    func(device int32) int32                                                     `cuda:"cuDevicePrimaryCtxRelease_v2"`
	CtxSetCurrent              func(ctx uintptr) int32                                                      `cuda:"cuCtxSetCurrent"`
	CtxSynchronize             func() int32                                                                 `cuda:"cuCtxSynchronize"`
	MemGetAllocGranularity     func(granularity *uintptr, prop *allocationProp, option int32) int32         `cuda:"cuMemGetAllocationGranularity"`
	MemCreate                  func(handle *uint64, size uintptr, prop *allocationProp, flags uint64) int32 `cuda:"cuMemCreate"`
	MemRelease                 func(handle uint64) int32                                                    `cuda:"cuMemRelease"`
	MemExportToShareableHandle func(fd *int32, handle uint64, kind int32, flags uint64) int32               `cuda:"cuMemExportToShareableHandle"`
	MemImportFromShareable     func(handle *uint64, fd uintptr, kind int32) int32                           `cuda:"cuMemImportFromShareableHandle"`
	MemAddressReserve          func(addr *uint64, size, alignment uintptr, wanted, flags uint64) int32      `cuda:"cuMemAddressReserve"`
	MemAddressFree             func(addr uint64, size uintptr) int32                                        `cuda:"cuMemAddressFree"`
	MemMap                     func(addr uint64, size, offset uintptr, handle uint64, flags uint64) int32   `cuda:"cuMemMap"`
	MemUnmap                   func(addr uint64, size uintptr) int32                                        `cuda:"cuMemUnmap"`
	MemSetAccess               func(addr uint64, size uintptr, desc *accessDesc, count uintptr) int32       `cuda:"cuMemSetAccess"`
	MemcpyHtoD                 func(to uint64, from unsafe.Pointer, size uintptr) int32                     `cuda:"cuMemcpyHtoD_v2"`
	MemcpyDtoH                 func(to unsafe.Pointer, from uint64, size uintptr) int32                     `cuda:"cuMemcpyDtoH_v2"`
	MemGetInfo                 func(free, total *uintptr) int32                                             `cuda:"cuMemGetInfo_v2"`
}

// drivers are the libraries that were loaded, by path: a driver is never
// unloaded, and initialised once.
var drivers struct {
	mu     sync.Mutex
	loaded map[string]*driver
}

// load loads the library, DefaultLibrary if path is empty, and initialises it.
// A failure is not remembered: the driver may be installed meanwhile.
func load(path string) (*driver, error) {
	if path == "" {
		path = DefaultLibrary
	}
	drivers.mu.Lock()
	defer drivers.mu.Unlock()
	if d := drivers.loaded[path]; d != nil {
		return d, nil
	}
	library, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("%w: load %s: %w (the driver's libcuda.so.1 must be installed here, and visible in this container)", ErrNoDriver, path, err)
	}
	d := &driver{}
	if err := d.bind(library); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %s is too old or not a CUDA driver: %w", ErrNoDriver, path, err), closeLibrary(library))
	}
	if err := d.check("cuInit", d.Init(initFlags)); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrNoDriver, path, err)
	}
	if drivers.loaded == nil {
		drivers.loaded = map[string]*driver{}
	}
	drivers.loaded[path] = d
	return d, nil
}

func closeLibrary(library uintptr) error {
	if err := purego.Dlclose(library); err != nil {
		return fmt.Errorf("close the library: %w", err)
	}
	return nil
}

// bind finds every function. The error names all that are missing.
func (d *driver) bind(library uintptr) error {
	v := reflect.ValueOf(d).Elem()
	var missing []string
	for i := range v.NumField() {
		name := v.Type().Field(i).Tag.Get("cuda")
		symbol, err := purego.Dlsym(library, name)
		if err != nil || symbol == 0 {
			missing = append(missing, name)
			continue
		}
		purego.RegisterFunc(v.Field(i).Addr().Interface(), symbol)
	}
	if len(missing) > 0 {
		return fmt.Errorf("it lacks %s", strings.Join(missing, ", "))
	}
	return nil
}

// check makes an error of a result.
func (d *driver) check(function string, code int32) error {
	if code == success {
		return nil
	}
	e := &Error{Function: function, Code: int(code), Name: "unknown to the driver"}
	var name *byte
	if d.GetErrorName(code, &name) == success && name != nil {
		e.Name = text(name)
	}
	return e
}

// text copies a C string.
func text(p *byte) string {
	var b []byte
	for ; *p != 0; p = (*byte)(unsafe.Add(unsafe.Pointer(p), 1)) {
		b = append(b, *p)
	}
	return string(b)
}

// properties are those of memory that can be shared, on a device.
func properties(device int32) *allocationProp {
	return &allocationProp{kind: allocationPinned, handleTypes: handlePosixFD, location: location{kind: locationDevice, id: device}}
}

// granularity is what sizes on a device must be multiples of.
func (d *driver) granularity(device int32) (uint64, error) {
	var bytes uintptr
	err := d.check("cuMemGetAllocationGranularity", d.MemGetAllocGranularity(&bytes, properties(device), granularityMin))
	if err == nil && bytes == 0 {
		err = errors.New("cuMemGetAllocationGranularity: the driver says 0")
	}
	return uint64(bytes), err
}
