package placement

// degrees are the tensor-parallel degrees that engines support.
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

// Sizing returns how many cards of so many bytes weights need, and how many bytes of
// each, by NDIF's rule: the weights and 15 % and 500 MiB, on the fewest cards that make
// a valid degree. It returns 0, 0 where no degree is enough, or an argument is below 1.
func Sizing(weights, card int64) (gpus int, perGPU int64) {
	if weights < 1 || card < 1 || weights > 1<<58 {
		return 0, 0
	}
	size := weights + ceilDiv(weights*15, 100) + 500<<20
	n := ceilDiv(size, card)
	if n > int64(degrees[len(degrees)-1]) {
		return 0, 0
	}
	gpus = Degree(int(n))
	return gpus, ceilDiv(size, int64(gpus))
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }
