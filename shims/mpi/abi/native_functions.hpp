// The native MPI's functions that the drop-in calls. tools/mpi_functions.py writes this file from
// functions.txt.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "shims/mpi/abi/callbacks.hpp"

namespace plait::mpi {

/// A pointer is null if the MPI lacks the function.
struct NativeFunctions {
  int (*Init)(int* argc, char*** argv) = nullptr;
  int (*Init_thread)(int* argc, char*** argv, int required, int* provided) = nullptr;
  int (*Finalize)() = nullptr;
  int (*Query_thread)(int* provided) = nullptr;
  int (*Wait)(void* request, void* status) = nullptr;
  int (*Waitall)(int count, void* array_of_requests, void* array_of_statuses) = nullptr;
  int (*Waitany)(int count, void* array_of_requests, int* indx, void* status) = nullptr;
  int (*Waitsome)(int incount, void* array_of_requests, int* outcount, int* array_of_indices,
                  void* array_of_statuses) = nullptr;
  int (*Test)(void* request, int* flag, void* status) = nullptr;
  int (*Testall)(int count, void* array_of_requests, int* flag, void* array_of_statuses) = nullptr;
  int (*Testany)(int count, void* array_of_requests, int* indx, int* flag, void* status) = nullptr;
  int (*Testsome)(int incount, void* array_of_requests, int* outcount, int* array_of_indices,
                  void* array_of_statuses) = nullptr;
  int (*Request_get_status)(Handle request, int* flag, void* status) = nullptr;
  int (*Request_get_status_all)(int count, const void* array_of_requests, int* flag,
                                void* array_of_statuses) = nullptr;
  int (*Request_get_status_any)(int count, const void* array_of_requests, int* indx, int* flag,
                                void* status) = nullptr;
  int (*Request_get_status_some)(int incount, const void* array_of_requests, int* outcount,
                                 int* array_of_indices, void* array_of_statuses) = nullptr;
  int (*Start)(void* request) = nullptr;
  int (*Startall)(int count, void* array_of_requests) = nullptr;
  int (*Request_free)(void* request) = nullptr;
  int (*Cancel)(void* request) = nullptr;
  int (*Probe)(int source, int tag, Handle comm, void* status) = nullptr;
  int (*Iprobe)(int source, int tag, Handle comm, int* flag, void* status) = nullptr;
  int (*Mprobe)(int source, int tag, Handle comm, void* message, void* status) = nullptr;
  int (*Improbe)(int source, int tag, Handle comm, int* flag, void* message,
                 void* status) = nullptr;
  int (*Grequest_start)(QueryRequest* query_fn, FreeRequest* free_fn, CancelRequest* cancel_fn,
                        void* extra_state, void* request) = nullptr;
  int (*Grequest_complete)(Handle request) = nullptr;
  int (*Status_set_elements)(void* status, Handle datatype, int count) = nullptr;
  int (*Status_set_elements_x)(void* status, Handle datatype, Count count) = nullptr;
  int (*Status_set_elements_c)(void* status, Handle datatype, Count count) = nullptr;
  int (*Status_set_cancelled)(void* status, int flag) = nullptr;
  int (*Test_cancelled)(const void* status, int* flag) = nullptr;
  int (*Get_elements_x)(const void* status, Handle datatype, Count* count) = nullptr;
  int (*Get_elements_c)(const void* status, Handle datatype, Count* count) = nullptr;
  int (*Comm_size)(Handle comm, int* size) = nullptr;
  int (*Comm_remote_size)(Handle comm, int* size) = nullptr;
  int (*Comm_rank)(Handle comm, int* rank) = nullptr;
  int (*Comm_group)(Handle comm, void* group) = nullptr;
  int (*Comm_test_inter)(Handle comm, int* flag) = nullptr;
  int (*Comm_split)(Handle comm, int color, int key, void* newcomm) = nullptr;
  int (*Comm_split_type)(Handle comm, int split_type, int key, Handle info,
                         void* newcomm) = nullptr;
  int (*Comm_free)(void* comm) = nullptr;
  int (*Comm_disconnect)(void* comm) = nullptr;
  int (*Comm_create_keyval)(CopyAttribute* comm_copy_attr_fn, DeleteAttribute* comm_delete_attr_fn,
                            int* comm_keyval, void* extra_state) = nullptr;
  int (*Comm_set_attr)(Handle comm, int comm_keyval, void* attribute_val) = nullptr;
  int (*Comm_get_attr)(Handle comm, int comm_keyval, void* attribute_val, int* flag) = nullptr;
  int (*Comm_call_errhandler)(Handle comm, int errorcode) = nullptr;
  int (*Comm_create_errhandler)(HandleError* comm_errhandler_fn, void* errhandler) = nullptr;
  int (*Comm_get_errhandler)(Handle comm, void* errhandler) = nullptr;
  int (*Comm_set_errhandler)(Handle comm, Handle errhandler) = nullptr;
  int (*Errhandler_free)(void* errhandler) = nullptr;
  int (*Add_error_class)(int* errorclass) = nullptr;
  int (*Add_error_code)(int errorclass, int* errorcode) = nullptr;
  int (*Add_error_string)(int errorcode, const char* string) = nullptr;
  int (*Error_string)(int errorcode, char* string, int* resultlen) = nullptr;
  int (*Error_class)(int errorcode, int* errorclass) = nullptr;
  int (*Group_translate_ranks)(Handle group1, int n, const int* ranks1, Handle group2,
                               int* ranks2) = nullptr;
  int (*Group_size)(Handle group, int* size) = nullptr;
  int (*Group_free)(void* group) = nullptr;
  int (*Topo_test)(Handle comm, int* status) = nullptr;
  int (*Cartdim_get)(Handle comm, int* ndims) = nullptr;
  int (*Cart_get)(Handle comm, int maxdims, int* dims, int* periods, int* coords) = nullptr;
  int (*Graph_neighbors_count)(Handle comm, int rank, int* nneighbors) = nullptr;
  int (*Dist_graph_neighbors_count)(Handle comm, int* indegree, int* outdegree,
                                    int* weighted) = nullptr;
  int (*Ibarrier)(Handle comm, void* request) = nullptr;
  int (*Barrier)(Handle comm) = nullptr;
  int (*Type_size)(Handle datatype, int* size) = nullptr;
  int (*Type_size_x)(Handle datatype, Count* size) = nullptr;
  int (*Type_size_c)(Handle datatype, Count* size) = nullptr;
  int (*Type_get_extent)(Handle datatype, std::intptr_t* lb, std::intptr_t* extent) = nullptr;
  int (*Type_get_true_extent)(Handle datatype, std::intptr_t* true_lb,
                              std::intptr_t* true_extent) = nullptr;
  int (*Type_get_contents)(Handle datatype, int max_integers, int max_addresses, int max_datatypes,
                           int* array_of_integers, std::intptr_t* array_of_addresses,
                           void* array_of_datatypes) = nullptr;
  int (*Type_get_envelope)(Handle datatype, int* num_integers, int* num_addresses,
                           int* num_datatypes, int* combiner) = nullptr;
  int (*Type_get_contents_c)(Handle datatype, Count max_integers, Count max_addresses,
                             Count max_large_counts, Count max_datatypes, int* array_of_integers,
                             std::intptr_t* array_of_addresses, Count* array_of_large_counts,
                             void* array_of_datatypes) = nullptr;
  int (*Type_get_envelope_c)(Handle datatype, Count* num_integers, Count* num_addresses,
                             Count* num_large_counts, Count* num_datatypes,
                             int* combiner) = nullptr;
  int (*Type_create_hindexed)(int count, const int* array_of_blocklengths,
                              const std::intptr_t* array_of_displacements, Handle oldtype,
                              void* newtype) = nullptr;
  int (*Type_contiguous)(int count, Handle oldtype, void* newtype) = nullptr;
  int (*Type_commit)(void* datatype) = nullptr;
  int (*Type_get_name)(Handle datatype, char* type_name, int* resultlen) = nullptr;
  int (*Type_dup)(Handle oldtype, void* newtype) = nullptr;
  int (*Type_free)(void* datatype) = nullptr;
  int (*Pack)(const void* inbuf, int incount, Handle datatype, void* outbuf, int outsize,
              int* position, Handle comm) = nullptr;
  int (*Unpack)(const void* inbuf, int insize, int* position, void* outbuf, int outcount,
                Handle datatype, Handle comm) = nullptr;
  int (*Allreduce)(const void* sendbuf, void* recvbuf, int count, Handle datatype, Handle op,
                   Handle comm) = nullptr;
  int (*Iallreduce)(const void* sendbuf, void* recvbuf, int count, Handle datatype, Handle op,
                    Handle comm, void* request) = nullptr;
  int (*Allreduce_init)(const void* sendbuf, void* recvbuf, int count, Handle datatype, Handle op,
                        Handle comm, Handle info, void* request) = nullptr;
  int (*Allreduce_c)(const void* sendbuf, void* recvbuf, Count count, Handle datatype, Handle op,
                     Handle comm) = nullptr;
  int (*Iallreduce_c)(const void* sendbuf, void* recvbuf, Count count, Handle datatype, Handle op,
                      Handle comm, void* request) = nullptr;
  int (*Allreduce_init_c)(const void* sendbuf, void* recvbuf, Count count, Handle datatype,
                          Handle op, Handle comm, Handle info, void* request) = nullptr;
  int (*Reduce)(const void* sendbuf, void* recvbuf, int count, Handle datatype, Handle op, int root,
                Handle comm) = nullptr;
  int (*Ireduce)(const void* sendbuf, void* recvbuf, int count, Handle datatype, Handle op,
                 int root, Handle comm, void* request) = nullptr;
  int (*Reduce_init)(const void* sendbuf, void* recvbuf, int count, Handle datatype, Handle op,
                     int root, Handle comm, Handle info, void* request) = nullptr;
  int (*Reduce_c)(const void* sendbuf, void* recvbuf, Count count, Handle datatype, Handle op,
                  int root, Handle comm) = nullptr;
  int (*Ireduce_c)(const void* sendbuf, void* recvbuf, Count count, Handle datatype, Handle op,
                   int root, Handle comm, void* request) = nullptr;
  int (*Reduce_init_c)(const void* sendbuf, void* recvbuf, Count count, Handle datatype, Handle op,
                       int root, Handle comm, Handle info, void* request) = nullptr;
  int (*Reduce_scatter_block)(const void* sendbuf, void* recvbuf, int recvcount, Handle datatype,
                              Handle op, Handle comm) = nullptr;
  int (*Ireduce_scatter_block)(const void* sendbuf, void* recvbuf, int recvcount, Handle datatype,
                               Handle op, Handle comm, void* request) = nullptr;
  int (*Reduce_scatter_block_init)(const void* sendbuf, void* recvbuf, int recvcount,
                                   Handle datatype, Handle op, Handle comm, Handle info,
                                   void* request) = nullptr;
  int (*Reduce_scatter_block_c)(const void* sendbuf, void* recvbuf, Count recvcount,
                                Handle datatype, Handle op, Handle comm) = nullptr;
  int (*Ireduce_scatter_block_c)(const void* sendbuf, void* recvbuf, Count recvcount,
                                 Handle datatype, Handle op, Handle comm, void* request) = nullptr;
  int (*Reduce_scatter_block_init_c)(const void* sendbuf, void* recvbuf, Count recvcount,
                                     Handle datatype, Handle op, Handle comm, Handle info,
                                     void* request) = nullptr;
  int (*Reduce_scatter)(const void* sendbuf, void* recvbuf, const int* recvcounts, Handle datatype,
                        Handle op, Handle comm) = nullptr;
  int (*Ireduce_scatter)(const void* sendbuf, void* recvbuf, const int* recvcounts, Handle datatype,
                         Handle op, Handle comm, void* request) = nullptr;
  int (*Reduce_scatter_init)(const void* sendbuf, void* recvbuf, const int* recvcounts,
                             Handle datatype, Handle op, Handle comm, Handle info,
                             void* request) = nullptr;
  int (*Reduce_scatter_c)(const void* sendbuf, void* recvbuf, const Count* recvcounts,
                          Handle datatype, Handle op, Handle comm) = nullptr;
  int (*Ireduce_scatter_c)(const void* sendbuf, void* recvbuf, const Count* recvcounts,
                           Handle datatype, Handle op, Handle comm, void* request) = nullptr;
  int (*Reduce_scatter_init_c)(const void* sendbuf, void* recvbuf, const Count* recvcounts,
                               Handle datatype, Handle op, Handle comm, Handle info,
                               void* request) = nullptr;
  int (*Allgather)(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                   int recvcount, Handle recvtype, Handle comm) = nullptr;
  int (*Iallgather)(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                    int recvcount, Handle recvtype, Handle comm, void* request) = nullptr;
  int (*Allgather_init)(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                        int recvcount, Handle recvtype, Handle comm, Handle info,
                        void* request) = nullptr;
  int (*Allgather_c)(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                     Count recvcount, Handle recvtype, Handle comm) = nullptr;
  int (*Iallgather_c)(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                      Count recvcount, Handle recvtype, Handle comm, void* request) = nullptr;
  int (*Allgather_init_c)(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                          Count recvcount, Handle recvtype, Handle comm, Handle info,
                          void* request) = nullptr;
  int (*Allgatherv)(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                    const int* recvcounts, const int* displs, Handle recvtype,
                    Handle comm) = nullptr;
  int (*Iallgatherv)(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                     const int* recvcounts, const int* displs, Handle recvtype, Handle comm,
                     void* request) = nullptr;
  int (*Allgatherv_init)(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                         const int* recvcounts, const int* displs, Handle recvtype, Handle comm,
                         Handle info, void* request) = nullptr;
  int (*Allgatherv_c)(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                      const Count* recvcounts, const std::intptr_t* displs, Handle recvtype,
                      Handle comm) = nullptr;
  int (*Iallgatherv_c)(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                       const Count* recvcounts, const std::intptr_t* displs, Handle recvtype,
                       Handle comm, void* request) = nullptr;
  int (*Allgatherv_init_c)(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                           const Count* recvcounts, const std::intptr_t* displs, Handle recvtype,
                           Handle comm, Handle info, void* request) = nullptr;
  int (*Gather)(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf, int recvcount,
                Handle recvtype, int root, Handle comm) = nullptr;
  int (*Igather)(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf, int recvcount,
                 Handle recvtype, int root, Handle comm, void* request) = nullptr;
  int (*Gather_init)(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                     int recvcount, Handle recvtype, int root, Handle comm, Handle info,
                     void* request) = nullptr;
  int (*Gather_c)(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                  Count recvcount, Handle recvtype, int root, Handle comm) = nullptr;
  int (*Igather_c)(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                   Count recvcount, Handle recvtype, int root, Handle comm,
                   void* request) = nullptr;
  int (*Gather_init_c)(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                       Count recvcount, Handle recvtype, int root, Handle comm, Handle info,
                       void* request) = nullptr;
  int (*Gatherv)(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                 const int* recvcounts, const int* displs, Handle recvtype, int root,
                 Handle comm) = nullptr;
  int (*Igatherv)(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                  const int* recvcounts, const int* displs, Handle recvtype, int root, Handle comm,
                  void* request) = nullptr;
  int (*Gatherv_init)(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                      const int* recvcounts, const int* displs, Handle recvtype, int root,
                      Handle comm, Handle info, void* request) = nullptr;
  int (*Gatherv_c)(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                   const Count* recvcounts, const std::intptr_t* displs, Handle recvtype, int root,
                   Handle comm) = nullptr;
  int (*Igatherv_c)(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                    const Count* recvcounts, const std::intptr_t* displs, Handle recvtype, int root,
                    Handle comm, void* request) = nullptr;
  int (*Gatherv_init_c)(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                        const Count* recvcounts, const std::intptr_t* displs, Handle recvtype,
                        int root, Handle comm, Handle info, void* request) = nullptr;
  int (*Bcast)(void* buffer, int count, Handle datatype, int root, Handle comm) = nullptr;
  int (*Ibcast)(void* buffer, int count, Handle datatype, int root, Handle comm,
                void* request) = nullptr;
  int (*Bcast_init)(void* buffer, int count, Handle datatype, int root, Handle comm, Handle info,
                    void* request) = nullptr;
  int (*Bcast_c)(void* buffer, Count count, Handle datatype, int root, Handle comm) = nullptr;
  int (*Ibcast_c)(void* buffer, Count count, Handle datatype, int root, Handle comm,
                  void* request) = nullptr;
  int (*Bcast_init_c)(void* buffer, Count count, Handle datatype, int root, Handle comm,
                      Handle info, void* request) = nullptr;
  int (*Scatter)(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf, int recvcount,
                 Handle recvtype, int root, Handle comm) = nullptr;
  int (*Iscatter)(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf, int recvcount,
                  Handle recvtype, int root, Handle comm, void* request) = nullptr;
  int (*Scatter_init)(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                      int recvcount, Handle recvtype, int root, Handle comm, Handle info,
                      void* request) = nullptr;
  int (*Scatter_c)(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                   Count recvcount, Handle recvtype, int root, Handle comm) = nullptr;
  int (*Iscatter_c)(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                    Count recvcount, Handle recvtype, int root, Handle comm,
                    void* request) = nullptr;
  int (*Scatter_init_c)(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                        Count recvcount, Handle recvtype, int root, Handle comm, Handle info,
                        void* request) = nullptr;
  int (*Scatterv)(const void* sendbuf, const int* sendcounts, const int* displs, Handle sendtype,
                  void* recvbuf, int recvcount, Handle recvtype, int root, Handle comm) = nullptr;
  int (*Iscatterv)(const void* sendbuf, const int* sendcounts, const int* displs, Handle sendtype,
                   void* recvbuf, int recvcount, Handle recvtype, int root, Handle comm,
                   void* request) = nullptr;
  int (*Scatterv_init)(const void* sendbuf, const int* sendcounts, const int* displs,
                       Handle sendtype, void* recvbuf, int recvcount, Handle recvtype, int root,
                       Handle comm, Handle info, void* request) = nullptr;
  int (*Scatterv_c)(const void* sendbuf, const Count* sendcounts, const std::intptr_t* displs,
                    Handle sendtype, void* recvbuf, Count recvcount, Handle recvtype, int root,
                    Handle comm) = nullptr;
  int (*Iscatterv_c)(const void* sendbuf, const Count* sendcounts, const std::intptr_t* displs,
                     Handle sendtype, void* recvbuf, Count recvcount, Handle recvtype, int root,
                     Handle comm, void* request) = nullptr;
  int (*Scatterv_init_c)(const void* sendbuf, const Count* sendcounts, const std::intptr_t* displs,
                         Handle sendtype, void* recvbuf, Count recvcount, Handle recvtype, int root,
                         Handle comm, Handle info, void* request) = nullptr;
  int (*Alltoall)(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf, int recvcount,
                  Handle recvtype, Handle comm) = nullptr;
  int (*Ialltoall)(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                   int recvcount, Handle recvtype, Handle comm, void* request) = nullptr;
  int (*Alltoall_init)(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                       int recvcount, Handle recvtype, Handle comm, Handle info,
                       void* request) = nullptr;
  int (*Alltoall_c)(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                    Count recvcount, Handle recvtype, Handle comm) = nullptr;
  int (*Ialltoall_c)(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                     Count recvcount, Handle recvtype, Handle comm, void* request) = nullptr;
  int (*Alltoall_init_c)(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                         Count recvcount, Handle recvtype, Handle comm, Handle info,
                         void* request) = nullptr;
  int (*Alltoallv)(const void* sendbuf, const int* sendcounts, const int* sdispls, Handle sendtype,
                   void* recvbuf, const int* recvcounts, const int* rdispls, Handle recvtype,
                   Handle comm) = nullptr;
  int (*Ialltoallv)(const void* sendbuf, const int* sendcounts, const int* sdispls, Handle sendtype,
                    void* recvbuf, const int* recvcounts, const int* rdispls, Handle recvtype,
                    Handle comm, void* request) = nullptr;
  int (*Alltoallv_init)(const void* sendbuf, const int* sendcounts, const int* sdispls,
                        Handle sendtype, void* recvbuf, const int* recvcounts, const int* rdispls,
                        Handle recvtype, Handle comm, Handle info, void* request) = nullptr;
  int (*Alltoallv_c)(const void* sendbuf, const Count* sendcounts, const std::intptr_t* sdispls,
                     Handle sendtype, void* recvbuf, const Count* recvcounts,
                     const std::intptr_t* rdispls, Handle recvtype, Handle comm) = nullptr;
  int (*Ialltoallv_c)(const void* sendbuf, const Count* sendcounts, const std::intptr_t* sdispls,
                      Handle sendtype, void* recvbuf, const Count* recvcounts,
                      const std::intptr_t* rdispls, Handle recvtype, Handle comm,
                      void* request) = nullptr;
  int (*Alltoallv_init_c)(const void* sendbuf, const Count* sendcounts,
                          const std::intptr_t* sdispls, Handle sendtype, void* recvbuf,
                          const Count* recvcounts, const std::intptr_t* rdispls, Handle recvtype,
                          Handle comm, Handle info, void* request) = nullptr;
  int (*Neighbor_allgather)(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                            int recvcount, Handle recvtype, Handle comm) = nullptr;
  int (*Ineighbor_allgather)(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                             int recvcount, Handle recvtype, Handle comm, void* request) = nullptr;
  int (*Neighbor_allgather_init)(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                                 int recvcount, Handle recvtype, Handle comm, Handle info,
                                 void* request) = nullptr;
  int (*Neighbor_allgather_c)(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                              Count recvcount, Handle recvtype, Handle comm) = nullptr;
  int (*Ineighbor_allgather_c)(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                               Count recvcount, Handle recvtype, Handle comm,
                               void* request) = nullptr;
  int (*Neighbor_allgather_init_c)(const void* sendbuf, Count sendcount, Handle sendtype,
                                   void* recvbuf, Count recvcount, Handle recvtype, Handle comm,
                                   Handle info, void* request) = nullptr;
  int (*Neighbor_allgatherv)(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                             const int* recvcounts, const int* displs, Handle recvtype,
                             Handle comm) = nullptr;
  int (*Ineighbor_allgatherv)(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                              const int* recvcounts, const int* displs, Handle recvtype,
                              Handle comm, void* request) = nullptr;
  int (*Neighbor_allgatherv_init)(const void* sendbuf, int sendcount, Handle sendtype,
                                  void* recvbuf, const int* recvcounts, const int* displs,
                                  Handle recvtype, Handle comm, Handle info,
                                  void* request) = nullptr;
  int (*Neighbor_allgatherv_c)(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                               const Count* recvcounts, const std::intptr_t* displs,
                               Handle recvtype, Handle comm) = nullptr;
  int (*Ineighbor_allgatherv_c)(const void* sendbuf, Count sendcount, Handle sendtype,
                                void* recvbuf, const Count* recvcounts, const std::intptr_t* displs,
                                Handle recvtype, Handle comm, void* request) = nullptr;
  int (*Neighbor_allgatherv_init_c)(const void* sendbuf, Count sendcount, Handle sendtype,
                                    void* recvbuf, const Count* recvcounts,
                                    const std::intptr_t* displs, Handle recvtype, Handle comm,
                                    Handle info, void* request) = nullptr;
  int (*Neighbor_alltoall)(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                           int recvcount, Handle recvtype, Handle comm) = nullptr;
  int (*Ineighbor_alltoall)(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                            int recvcount, Handle recvtype, Handle comm, void* request) = nullptr;
  int (*Neighbor_alltoall_init)(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                                int recvcount, Handle recvtype, Handle comm, Handle info,
                                void* request) = nullptr;
  int (*Neighbor_alltoall_c)(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                             Count recvcount, Handle recvtype, Handle comm) = nullptr;
  int (*Ineighbor_alltoall_c)(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                              Count recvcount, Handle recvtype, Handle comm,
                              void* request) = nullptr;
  int (*Neighbor_alltoall_init_c)(const void* sendbuf, Count sendcount, Handle sendtype,
                                  void* recvbuf, Count recvcount, Handle recvtype, Handle comm,
                                  Handle info, void* request) = nullptr;
  int (*Neighbor_alltoallv)(const void* sendbuf, const int* sendcounts, const int* sdispls,
                            Handle sendtype, void* recvbuf, const int* recvcounts,
                            const int* rdispls, Handle recvtype, Handle comm) = nullptr;
  int (*Ineighbor_alltoallv)(const void* sendbuf, const int* sendcounts, const int* sdispls,
                             Handle sendtype, void* recvbuf, const int* recvcounts,
                             const int* rdispls, Handle recvtype, Handle comm,
                             void* request) = nullptr;
  int (*Neighbor_alltoallv_init)(const void* sendbuf, const int* sendcounts, const int* sdispls,
                                 Handle sendtype, void* recvbuf, const int* recvcounts,
                                 const int* rdispls, Handle recvtype, Handle comm, Handle info,
                                 void* request) = nullptr;
  int (*Neighbor_alltoallv_c)(const void* sendbuf, const Count* sendcounts,
                              const std::intptr_t* sdispls, Handle sendtype, void* recvbuf,
                              const Count* recvcounts, const std::intptr_t* rdispls,
                              Handle recvtype, Handle comm) = nullptr;
  int (*Ineighbor_alltoallv_c)(const void* sendbuf, const Count* sendcounts,
                               const std::intptr_t* sdispls, Handle sendtype, void* recvbuf,
                               const Count* recvcounts, const std::intptr_t* rdispls,
                               Handle recvtype, Handle comm, void* request) = nullptr;
  int (*Neighbor_alltoallv_init_c)(const void* sendbuf, const Count* sendcounts,
                                   const std::intptr_t* sdispls, Handle sendtype, void* recvbuf,
                                   const Count* recvcounts, const std::intptr_t* rdispls,
                                   Handle recvtype, Handle comm, Handle info,
                                   void* request) = nullptr;
  int (*Neighbor_alltoallw)(const void* sendbuf, const int* sendcounts, const void* sdispls,
                            const void* sendtypes, void* recvbuf, const int* recvcounts,
                            const void* rdispls, const void* recvtypes, Handle comm) = nullptr;
  int (*Ineighbor_alltoallw)(const void* sendbuf, const int* sendcounts, const void* sdispls,
                             const void* sendtypes, void* recvbuf, const int* recvcounts,
                             const void* rdispls, const void* recvtypes, Handle comm,
                             void* request) = nullptr;
  int (*Neighbor_alltoallw_init)(const void* sendbuf, const int* sendcounts, const void* sdispls,
                                 const void* sendtypes, void* recvbuf, const int* recvcounts,
                                 const void* rdispls, const void* recvtypes, Handle comm,
                                 Handle info, void* request) = nullptr;
  int (*Neighbor_alltoallw_c)(const void* sendbuf, const Count* sendcounts, const void* sdispls,
                              const void* sendtypes, void* recvbuf, const Count* recvcounts,
                              const void* rdispls, const void* recvtypes, Handle comm) = nullptr;
  int (*Ineighbor_alltoallw_c)(const void* sendbuf, const Count* sendcounts, const void* sdispls,
                               const void* sendtypes, void* recvbuf, const Count* recvcounts,
                               const void* rdispls, const void* recvtypes, Handle comm,
                               void* request) = nullptr;
  int (*Neighbor_alltoallw_init_c)(const void* sendbuf, const Count* sendcounts,
                                   const void* sdispls, const void* sendtypes, void* recvbuf,
                                   const Count* recvcounts, const void* rdispls,
                                   const void* recvtypes, Handle comm, Handle info,
                                   void* request) = nullptr;
  int (*Alltoallw)(const void* sendbuf, const int* sendcounts, const int* sdispls,
                   const void* sendtypes, void* recvbuf, const int* recvcounts, const int* rdispls,
                   const void* recvtypes, Handle comm) = nullptr;
  int (*Ialltoallw)(const void* sendbuf, const int* sendcounts, const int* sdispls,
                    const void* sendtypes, void* recvbuf, const int* recvcounts, const int* rdispls,
                    const void* recvtypes, Handle comm, void* request) = nullptr;
  int (*Alltoallw_init)(const void* sendbuf, const int* sendcounts, const int* sdispls,
                        const void* sendtypes, void* recvbuf, const int* recvcounts,
                        const int* rdispls, const void* recvtypes, Handle comm, Handle info,
                        void* request) = nullptr;
  int (*Alltoallw_c)(const void* sendbuf, const Count* sendcounts, const std::intptr_t* sdispls,
                     const void* sendtypes, void* recvbuf, const Count* recvcounts,
                     const std::intptr_t* rdispls, const void* recvtypes, Handle comm) = nullptr;
  int (*Ialltoallw_c)(const void* sendbuf, const Count* sendcounts, const std::intptr_t* sdispls,
                      const void* sendtypes, void* recvbuf, const Count* recvcounts,
                      const std::intptr_t* rdispls, const void* recvtypes, Handle comm,
                      void* request) = nullptr;
  int (*Alltoallw_init_c)(const void* sendbuf, const Count* sendcounts,
                          const std::intptr_t* sdispls, const void* sendtypes, void* recvbuf,
                          const Count* recvcounts, const std::intptr_t* rdispls,
                          const void* recvtypes, Handle comm, Handle info, void* request) = nullptr;
  int (*Scan)(const void* sendbuf, void* recvbuf, int count, Handle datatype, Handle op,
              Handle comm) = nullptr;
  int (*Iscan)(const void* sendbuf, void* recvbuf, int count, Handle datatype, Handle op,
               Handle comm, void* request) = nullptr;
  int (*Scan_init)(const void* sendbuf, void* recvbuf, int count, Handle datatype, Handle op,
                   Handle comm, Handle info, void* request) = nullptr;
  int (*Scan_c)(const void* sendbuf, void* recvbuf, Count count, Handle datatype, Handle op,
                Handle comm) = nullptr;
  int (*Iscan_c)(const void* sendbuf, void* recvbuf, Count count, Handle datatype, Handle op,
                 Handle comm, void* request) = nullptr;
  int (*Scan_init_c)(const void* sendbuf, void* recvbuf, Count count, Handle datatype, Handle op,
                     Handle comm, Handle info, void* request) = nullptr;
  int (*Exscan)(const void* sendbuf, void* recvbuf, int count, Handle datatype, Handle op,
                Handle comm) = nullptr;
  int (*Iexscan)(const void* sendbuf, void* recvbuf, int count, Handle datatype, Handle op,
                 Handle comm, void* request) = nullptr;
  int (*Exscan_init)(const void* sendbuf, void* recvbuf, int count, Handle datatype, Handle op,
                     Handle comm, Handle info, void* request) = nullptr;
  int (*Exscan_c)(const void* sendbuf, void* recvbuf, Count count, Handle datatype, Handle op,
                  Handle comm) = nullptr;
  int (*Iexscan_c)(const void* sendbuf, void* recvbuf, Count count, Handle datatype, Handle op,
                   Handle comm, void* request) = nullptr;
  int (*Exscan_init_c)(const void* sendbuf, void* recvbuf, Count count, Handle datatype, Handle op,
                       Handle comm, Handle info, void* request) = nullptr;
  int (*Reduce_local)(const void* inbuf, void* inoutbuf, int count, Handle datatype,
                      Handle op) = nullptr;
  int (*Reduce_local_c)(const void* inbuf, void* inoutbuf, Count count, Handle datatype,
                        Handle op) = nullptr;
  int (*Send)(const void* buf, int count, Handle datatype, int dest, int tag,
              Handle comm) = nullptr;
  int (*Send_c)(const void* buf, Count count, Handle datatype, int dest, int tag,
                Handle comm) = nullptr;
  int (*Ssend)(const void* buf, int count, Handle datatype, int dest, int tag,
               Handle comm) = nullptr;
  int (*Ssend_c)(const void* buf, Count count, Handle datatype, int dest, int tag,
                 Handle comm) = nullptr;
  int (*Rsend)(const void* buf, int count, Handle datatype, int dest, int tag,
               Handle comm) = nullptr;
  int (*Rsend_c)(const void* buf, Count count, Handle datatype, int dest, int tag,
                 Handle comm) = nullptr;
  int (*Bsend)(const void* buf, int count, Handle datatype, int dest, int tag,
               Handle comm) = nullptr;
  int (*Bsend_c)(const void* buf, Count count, Handle datatype, int dest, int tag,
                 Handle comm) = nullptr;
  int (*Isend)(const void* buf, int count, Handle datatype, int dest, int tag, Handle comm,
               void* request) = nullptr;
  int (*Isend_c)(const void* buf, Count count, Handle datatype, int dest, int tag, Handle comm,
                 void* request) = nullptr;
  int (*Issend)(const void* buf, int count, Handle datatype, int dest, int tag, Handle comm,
                void* request) = nullptr;
  int (*Issend_c)(const void* buf, Count count, Handle datatype, int dest, int tag, Handle comm,
                  void* request) = nullptr;
  int (*Irsend)(const void* buf, int count, Handle datatype, int dest, int tag, Handle comm,
                void* request) = nullptr;
  int (*Irsend_c)(const void* buf, Count count, Handle datatype, int dest, int tag, Handle comm,
                  void* request) = nullptr;
  int (*Ibsend)(const void* buf, int count, Handle datatype, int dest, int tag, Handle comm,
                void* request) = nullptr;
  int (*Ibsend_c)(const void* buf, Count count, Handle datatype, int dest, int tag, Handle comm,
                  void* request) = nullptr;
  int (*Send_init)(const void* buf, int count, Handle datatype, int dest, int tag, Handle comm,
                   void* request) = nullptr;
  int (*Send_init_c)(const void* buf, Count count, Handle datatype, int dest, int tag, Handle comm,
                     void* request) = nullptr;
  int (*Rsend_init)(const void* buf, int count, Handle datatype, int dest, int tag, Handle comm,
                    void* request) = nullptr;
  int (*Rsend_init_c)(const void* buf, Count count, Handle datatype, int dest, int tag, Handle comm,
                      void* request) = nullptr;
  int (*Ssend_init)(const void* buf, int count, Handle datatype, int dest, int tag, Handle comm,
                    void* request) = nullptr;
  int (*Ssend_init_c)(const void* buf, Count count, Handle datatype, int dest, int tag, Handle comm,
                      void* request) = nullptr;
  int (*Bsend_init)(const void* buf, int count, Handle datatype, int dest, int tag, Handle comm,
                    void* request) = nullptr;
  int (*Bsend_init_c)(const void* buf, Count count, Handle datatype, int dest, int tag, Handle comm,
                      void* request) = nullptr;
  int (*Recv)(void* buf, int count, Handle datatype, int source, int tag, Handle comm,
              void* status) = nullptr;
  int (*Recv_c)(void* buf, Count count, Handle datatype, int source, int tag, Handle comm,
                void* status) = nullptr;
  int (*Mrecv)(void* buf, int count, Handle datatype, void* message, void* status) = nullptr;
  int (*Mrecv_c)(void* buf, Count count, Handle datatype, void* message, void* status) = nullptr;
  int (*Irecv)(void* buf, int count, Handle datatype, int source, int tag, Handle comm,
               void* request) = nullptr;
  int (*Irecv_c)(void* buf, Count count, Handle datatype, int source, int tag, Handle comm,
                 void* request) = nullptr;
  int (*Imrecv)(void* buf, int count, Handle datatype, void* message, void* request) = nullptr;
  int (*Imrecv_c)(void* buf, Count count, Handle datatype, void* message, void* request) = nullptr;
  int (*Recv_init)(void* buf, int count, Handle datatype, int source, int tag, Handle comm,
                   void* request) = nullptr;
  int (*Recv_init_c)(void* buf, Count count, Handle datatype, int source, int tag, Handle comm,
                     void* request) = nullptr;
  int (*Sendrecv)(const void* sendbuf, int sendcount, Handle sendtype, int dest, int sendtag,
                  void* recvbuf, int recvcount, Handle recvtype, int source, int recvtag,
                  Handle comm, void* status) = nullptr;
  int (*Sendrecv_c)(const void* sendbuf, Count sendcount, Handle sendtype, int dest, int sendtag,
                    void* recvbuf, Count recvcount, Handle recvtype, int source, int recvtag,
                    Handle comm, void* status) = nullptr;
  int (*Sendrecv_replace)(void* buf, int count, Handle datatype, int dest, int sendtag, int source,
                          int recvtag, Handle comm, void* status) = nullptr;
  int (*Sendrecv_replace_c)(void* buf, Count count, Handle datatype, int dest, int sendtag,
                            int source, int recvtag, Handle comm, void* status) = nullptr;
  int (*Isendrecv)(const void* sendbuf, int sendcount, Handle sendtype, int dest, int sendtag,
                   void* recvbuf, int recvcount, Handle recvtype, int source, int recvtag,
                   Handle comm, void* request) = nullptr;
  int (*Isendrecv_c)(const void* sendbuf, Count sendcount, Handle sendtype, int dest, int sendtag,
                     void* recvbuf, Count recvcount, Handle recvtype, int source, int recvtag,
                     Handle comm, void* request) = nullptr;
  int (*Isendrecv_replace)(void* buf, int count, Handle datatype, int dest, int sendtag, int source,
                           int recvtag, Handle comm, void* request) = nullptr;
  int (*Isendrecv_replace_c)(void* buf, Count count, Handle datatype, int dest, int sendtag,
                             int source, int recvtag, Handle comm, void* request) = nullptr;
};

/// Symbol of a member of NativeFunctions.
struct NativeName {
  const char* name;
  const char* early_name;  ///< in MPIs before MPI 4; may be null
  std::size_t offset;      ///< of the member
};
std::span<const NativeName> native_names();

}  // namespace plait::mpi
