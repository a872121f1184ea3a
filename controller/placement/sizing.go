package placement

// degrees are the tensor-parallel degrees that engines support. Tensor parallelism gives
// every GPU the same number of attention heads and the same slice of every matrix. Those are
// multiples of powers of two in practice, and so are NVLink cliques, so engines refuse most
// other counts only after minutes of loading. A node has at most 16 GPUs.
var degrees = [...]int{1, 2, 4, 8, 16}

// Degree rounds a number of GPUs up to a valid tensor-parallel degree: 1, 2, 4, 8 or
// 16. It returns 0 where there is none, that is below 1 and above 16.
func Degree(n int) int {
	if n < 1 {
		return 0
	}
	for _, d := range degrees {
		if n <= d {
			return d
		}
	}
	return 0
}

// ReplicaSize is what a replica with these weights takes of all its GPUs together:
// ceil(weights * 1.15 + 500 MiB), the sizing of NDIF (https://ndif.us): 15 % for what the
// runtime makes of the weights, 500 MiB for the CUDA context. An engine that sets memory
// aside for its cache, as vLLM does, takes more.
func ReplicaSize(weights int64) int64 { return weights + ceilDiv(weights*15, 100) + 500<<20 }

// PerGPU splits a size over GPUs as NDIF does: each is charged ceil(size / gpus).
func PerGPU(size int64, gpus int) int64 { return ceilDiv(size, int64(gpus)) }

// Sizing returns how many cards of so many bytes weights need, and how many bytes of
// each: the ReplicaSize on the fewest cards that make a valid degree. It returns 0, 0 where
// no degree is enough, or an argument is below 1.
func Sizing(weights, card int64) (gpus int, perGPU int64) {
	if weights < 1 || card < 1 || weights > 1<<58 {
		return 0, 0
	}
	size := ReplicaSize(weights)
	n := ceilDiv(size, card)
	if n > int64(degrees[len(degrees)-1]) {
		return 0, 0
	}
	gpus = Degree(int(n))
	return gpus, PerGPU(size, gpus)
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }
