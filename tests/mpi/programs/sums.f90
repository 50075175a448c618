! Sums by mpi_f08, blocking and non-blocking, in place and not. Prints a line of JSON a rank. The
! MPI's Fortran wrappers call the C names, so plait exports no Fortran ones.
program sums
  use, intrinsic :: iso_c_binding
  use mpi_f08
  implicit none
  interface
    function dlsym(handle, name) bind(c)
      import :: c_ptr, c_funptr, c_char
      type(c_ptr), value :: handle
      character(kind=c_char), intent(in) :: name(*)
      type(c_funptr) :: dlsym
    end function
    function counter() bind(c)
      import :: c_int64_t
      integer(c_int64_t) :: counter
    end function
  end interface
  procedure(counter), pointer :: served
  integer :: rank, ranks, wrong
  real(8) :: in(5000), out(5000)
  integer :: numbers(5000)
  type(MPI_Request) :: request
  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  wrong = 0
  in = rank + 1
  call MPI_Allreduce(in, out, 5000, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD)
  if (any(out /= ranks * (ranks + 1) / 2)) wrong = wrong + 1
  call MPI_Allreduce(MPI_IN_PLACE, in, 5000, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD)
  if (any(in /= out)) wrong = wrong + 1
  numbers = rank
  call MPI_Iallreduce(MPI_IN_PLACE, numbers, 5000, MPI_INTEGER, MPI_MAX, MPI_COMM_WORLD, request)
  call MPI_Wait(request, MPI_STATUS_IGNORE)
  if (any(numbers /= ranks - 1)) wrong = wrong + 1
  call c_f_procpointer(dlsym(c_null_ptr, "plait_mpi_calls_served" // c_null_char), served)
  print '(a,i0,a,i0,a,i0,a)', '{"rank": ', rank, ', "wrong": ', wrong, ', "served": ', served(), '}'
  call MPI_Finalize()
end program
